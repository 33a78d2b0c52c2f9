// Plain data between the op files of the dense part (RoPE, attention) and their kernels.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace colibri {

// Keys of an attention tile, aligned to absolute position.
constexpr int kTile = 64;
// Queries that one AttentionWork may hold.
constexpr int kMaxQueries = 64;

// One row: [heads | kv_heads | kv_heads] vectors of head_dim.
struct RopeRow {
  const float* qkv;
  const float *cos, *sin;  // [head_dim / 2] of the row's position
  float* q;                // [heads][head_dim]
  void *k, *v;             // the row's slot for key/value head 0; the next head is head_stride elements further
  int64_t head_stride;
  int64_t heads, kv_heads, head_dim;
  bool bf16;               // dtype of the cache
};

// Up to kMaxQueries queries of one sequence that read one key/value head.
struct AttentionWork {
  const void *k, *v;       // the whole cache of the layer
  const int32_t* pages;    // of the sequence
  int64_t kv_heads, kv_head, head_dim;
  int page_shift;          // log2 of positions per page
  bool bf16;               // dtype of the cache
  bool bf16_out;
  float scale;
  int queries;
  const float* q[kMaxQueries];     // [head_dim] each
  void* out[kMaxQueries];          // [head_dim] each
  int32_t first[kMaxQueries];      // first and last visible key
  int32_t last[kMaxQueries];
};

// Floats of 64-byte aligned scratch that either attention kernel needs.
inline constexpr int64_t attention_scratch(int64_t head_dim) {
  const int64_t padded = (head_dim + 15) / 16 * 16;
  // K and V tile, queries, outputs; probabilities; per query m and l; sums before their trees.
  return 2 * kTile * padded + 2 * kMaxQueries * padded + kMaxQueries * kTile + 2 * kMaxQueries + 4 * 16 * 16;
}

}  // namespace colibri
