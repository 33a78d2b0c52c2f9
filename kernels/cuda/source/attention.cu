// Grouped-query attention over the paged cache, tiles of 64 keys aligned to position, step by step as docs/numerics.md.
#include "math.cuh"

#define KEYS 64

__device__ inline float cache_at(const void* cache, u64 at, int bf16) {
  return bf16 ? widen_bf16(((const u16*)cache)[at]) : ((const float*)cache)[at];
}

// A block: one row and one key/value head with its group of query heads. window: 0 for none. page_table rows of
// `max_pages`; first_key and position: visible keys of each row.
extern "C" __global__ void __launch_bounds__(128)
    attend_rows(const float* q, const void* k_cache, const void* v_cache, const int* page_table, const int* row_sequence,
                const int* positions, const int* first_keys, void* out, u32 heads, u32 kv_heads, u32 head_dim, u32 page,
                u32 max_pages, float scale, int cache_bf16, int out_bf16) {
  DYNAMIC_SHARED(shared);
  u32 row = blockIdx.x / kv_heads, kv_head = blockIdx.x % kv_heads, share = heads / kv_heads, width = share * head_dim;
  float* query = (float*)shared;      // [share][head_dim]
  float* sums = query + width;        // [share][head_dim]
  float* p = sums + width;            // [share][KEYS]
  float* largest = p + share * KEYS;  // [share]
  float* norm = largest + share;      // [share]
  float* again = norm + share;        // [share]: what earlier sums are multiplied by
  u64 source = ((u64)row * heads + kv_head * share) * head_dim;
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) query[i] = q[source + i];
  int position = positions[row], first_key = first_keys[row];
  const int* table = page_table + (u64)row_sequence[row] * max_pages;
  __syncthreads();
  bool fresh = true;
  for (int start = first_key / KEYS * KEYS; start <= position; start += KEYS) {
    int low = max(first_key - start, 0), high = min(position - start, KEYS - 1);
    for (u32 i = threadIdx.x; i < share * KEYS; i += blockDim.x) {
      u32 head = i / KEYS, slot = i % KEYS, key = start + slot;
      float score = -__uint_as_float(0x7f800000u);
      if ((int)slot >= low && (int)slot <= high) {
        u64 at = (((u64)table[key / page] * kv_heads + kv_head) * page + key % page) * head_dim;
        float lanes[16];
#pragma unroll
        for (u32 l = 0; l < 16; l++) lanes[l] = 0.f;
        for (u32 d = 0; d < head_dim; d += 16)
#pragma unroll
          for (u32 l = 0; l < 16; l++)
            if (d + l < head_dim)
              lanes[l] = __fmaf_rn(query[head * head_dim + d + l], cache_at(k_cache, at + d + l, cache_bf16), lanes[l]);
#pragma unroll
        for (int power = 3; power >= 0; power--)
#pragma unroll
          for (int l = 0; l < 1 << power; l++) lanes[l] = __fadd_rn(lanes[l], lanes[l + (1 << power)]);
        score = __fmul_rn(lanes[0], scale);
      }
      p[i] = score;
    }
    __syncthreads();
    // Sixteen threads a head.
    for (u32 first = 0; first < share; first += blockDim.x / 16) {
      u32 head = first + threadIdx.x / 16, lane = threadIdx.x % 16;
      bool live = head < share;
      float* row_p = p + (live ? head : 0) * KEYS;
      float most = -__uint_as_float(0x7f800000u);
      for (u32 i = lane; i < KEYS; i += 16) most = fmaxf(most, row_p[i]);
      for (int step = 8; step; step >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
      float previous = fresh || !live ? most : largest[head];
      most = fmaxf(most, previous);
      float sum = 0.f;
      for (u32 i = lane; i < KEYS; i += 16) {
        float e = (int)i >= low && (int)i <= high ? exp32(__fsub_rn(row_p[i], most)) : 0.f;
        if (live) row_p[i] = e;
        sum = i < 16 ? e : __fadd_rn(sum, e);
      }
      sum = tree16(sum);
      if (live && lane == 0) {
        float factor = exp32(__fsub_rn(previous, most));
        again[head] = factor;
        norm[head] = fresh ? sum : __fadd_rn(__fmul_rn(norm[head], factor), sum);
        largest[head] = most;
      }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
      u32 head = i / head_dim, d = i % head_dim;
      float sum = fresh ? 0.f : __fmul_rn(sums[i], again[head]);
      for (int slot = low; slot <= high; slot++) {
        u32 key = start + slot;
        u64 at = (((u64)table[key / page] * kv_heads + kv_head) * page + key % page) * head_dim + d;
        sum = __fmaf_rn(p[head * KEYS + slot], cache_at(v_cache, at, cache_bf16), sum);
      }
      sums[i] = sum;
    }
    __syncthreads();
    fresh = false;
  }
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
    float value = __fdiv_rn(sums[i], norm[i / head_dim]);
    if (out_bf16) ((u16*)out)[source + i] = round_bf16(value);
    else ((float*)out)[source + i] = value;
  }
}
