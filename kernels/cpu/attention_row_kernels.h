// Attention of the query heads of one row that share a key/value head: lanes run over head_dim, so that a key or value is
// loaded once for all of them. Bit-equal to attention_block_kernels.h, which serves many rows.
#pragma once
#include "attention_cache.h"
#include "math16.h"
#include "tree_batch.h"

namespace colibri {
namespace COLIBRI_ISA {

// Heads, keys and vectors that the registers hold at a time.
#if defined(COLIBRI_SIMD_AVX512)
constexpr int kRowHeads = 4, kRowKeys = 2, kRowVectors = 4;
#else
constexpr int kRowHeads = 2, kRowKeys = 1, kRowVectors = 2;
#endif

// Step 1 before the tree: per key and head the sixteen partial sums.
template <class T, int kHeads, int kKeys>
COLIBRI_INLINE void dot_keys(const T* const* k, int key, const float* q, int64_t padded, float* sums) {
  f32x16 acc[kKeys][kHeads];
  for (int j = 0; j < kKeys; j++)
    for (int h = 0; h < kHeads; h++) acc[j][h] = zero16();
  for (int64_t i = 0; i < padded; i += 16) {
    f32x16 x[kKeys];
    for (int j = 0; j < kKeys; j++) x[j] = load_cache(k[key + j] + i);
    for (int h = 0; h < kHeads; h++) {
      const f32x16 y = load(q + h * padded + i);
      for (int j = 0; j < kKeys; j++) acc[j][h] = fma(y, x[j], acc[j][h]);
    }
  }
  for (int j = 0; j < kKeys; j++)
    for (int h = 0; h < kHeads; h++) store(sums + h * 256 + tree_slot((key + j) & 15) * 16, acc[j][h]);
}

// Scores of the keys begin .. end-1 of one group of sixteen; the other lanes come out as 0.
template <class T, int kHeads>
COLIBRI_INLINE void score_group(const T* const* k, int group, int begin, int end, const float* q, int64_t padded,
                                float scale, float* sums, float* s) {
  for (int key = group * 16; key < group * 16 + 16; key++)
    if (key < begin || key >= end)
      for (int h = 0; h < kHeads; h++) store(sums + h * 256 + tree_slot(key & 15) * 16, zero16());
  int key = begin;
  for (; key + kRowKeys <= end; key += kRowKeys) dot_keys<T, kHeads, kRowKeys>(k, key, q, padded, sums);
  for (; key < end; key++) dot_keys<T, kHeads, 1>(k, key, q, padded, sums);
  for (int h = 0; h < kHeads; h++)
    store(s + h * kTile + group * 16, mul(tree16x16(sums + h * 256), set1(scale)));
}

// Steps 2 to 4 of one head: scores become probabilities; returns the factor for o.
COLIBRI_INLINE float soften(float* s, int lo, int hi, float* m, float* l) {
  f32x16 v[4];
  f32x16 top = set1(-__builtin_inff());
  for (int g = 0; g < 4; g++) {
    const int begin = lo - 16 * g, end = hi - 16 * g;
    const uint32_t visible = to_bits(first_n(clamp16(end))) & ~to_bits(first_n(clamp16(begin)));
    v[g] = select(from_bits(visible), load(s + 16 * g), set1(-__builtin_inff()));
    top = max(top, v[g]);
  }
  const float tile_max = max16(top);
  const float next = *m > tile_max ? *m : tile_max;
  for (int g = 0; g < 4; g++) {
    v[g] = exp32(sub(v[g], set1(next)));
    store(s + 16 * g, v[g]);
  }
  const float t = tree16(add(add(add(v[0], v[1]), v[2]), v[3]));
  // exp32(0) is exactly 1. On the first tile m is -inf, the factor 0, and l and o are still 0.
  float factor = 1.0f;
  if (!(*m == next)) {
    float lanes[16];
    store(lanes, exp32(set1(*m - next)));
    factor = lanes[0];
  }
  *m = next;
  *l = *l * factor + t;
  return factor;
}

// Steps 4 and 5: kVectors * 16 of the head_dim for kHeads heads.
template <class T, int kHeads, int kVectors>
COLIBRI_INLINE void add_values(const T* const* v, int lo, int hi, const float* p, const float* factor, float* o,
                               int64_t padded, int64_t i) {
  f32x16 acc[kHeads][kVectors];
  for (int h = 0; h < kHeads; h++)
    for (int c = 0; c < kVectors; c++) acc[h][c] = mul(load(o + h * padded + i + c * 16), set1(factor[h]));
  for (int key = lo; key < hi; key++) {
    f32x16 x[kVectors];
    for (int c = 0; c < kVectors; c++) x[c] = load_cache(v[key] + i + c * 16);
    for (int h = 0; h < kHeads; h++) {
      const f32x16 y = set1(p[h * kTile + key]);
      for (int c = 0; c < kVectors; c++) acc[h][c] = fma(y, x[c], acc[h][c]);
    }
  }
  for (int h = 0; h < kHeads; h++)
    for (int c = 0; c < kVectors; c++) store(o + h * padded + i + c * 16, acc[h][c]);
}

// One tile for kHeads heads; keys lo .. hi-1 of it are visible.
template <class T, int kHeads>
static void row_tile(const T* const* k, const T* const* v, int lo, int hi, int64_t padded, float scale, const float* q,
                     float* o, float* s, float* m, float* l, float* sums) {
  for (int group = lo / 16; group * 16 < hi; group++) {
    const int begin = group * 16 > lo ? group * 16 : lo, end = group * 16 + 16 < hi ? group * 16 + 16 : hi;
    score_group<T, kHeads>(k, group, begin, end, q, padded, scale, sums, s);
  }
  float factor[kHeads];
  for (int h = 0; h < kHeads; h++) factor[h] = soften(s + h * kTile, lo, hi, m + h, l + h);
  int64_t i = 0;
  for (; i + kRowVectors * 16 <= padded; i += kRowVectors * 16)
    add_values<T, kHeads, kRowVectors>(v, lo, hi, s, factor, o, padded, i);
  for (; i < padded; i += 16) add_values<T, kHeads, 1>(v, lo, hi, s, factor, o, padded, i);
}

template <class T>
static void row_tile_all_heads(const T* const* k, const T* const* v, int lo, int hi, int64_t padded, float scale, int heads,
                               const float* q, float* o, float* s, float* m, float* l, float* sums) {
  for (int h = 0; h < heads; h += kRowHeads) {
    const int n = heads - h < kRowHeads ? heads - h : kRowHeads;
    const float* qh = q + h * padded;
    float* oh = o + h * padded;
    if (n == 1) row_tile<T, 1>(k, v, lo, hi, padded, scale, qh, oh, s, m + h, l + h, sums);
    else if (n == 2) row_tile<T, 2>(k, v, lo, hi, padded, scale, qh, oh, s, m + h, l + h, sums);
#if defined(COLIBRI_SIMD_AVX512)
    else if (n == 3) row_tile<T, 3>(k, v, lo, hi, padded, scale, qh, oh, s, m + h, l + h, sums);
    else row_tile<T, 4>(k, v, lo, hi, padded, scale, qh, oh, s, m + h, l + h, sums);
#endif
  }
}

// o / l, rounded to the output's dtype.
COLIBRI_INLINE void finish_query(const float* o, float l, int64_t n, bool bf16, void* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const int count = clamp16(n - i);
    const f32x16 y = div(load(o + i), set1(l));
    if (bf16) store_bf16_n(static_cast<uint16_t*>(out) + i, y, count);
    else store_n(static_cast<float*>(out) + i, y, count);
  }
}

template <class T>
static void attend_row_as(const AttentionWork& w, float* scratch) {
  const int64_t d = w.head_dim, padded = (d + 15) / 16 * 16;
  float* tile = scratch;  // K, then V: only where head_dim is ragged
  float* q = tile + 2 * kTile * padded;
  float* o = q + kMaxQueries * padded;
  float* s = o + kMaxQueries * padded;
  float* m = s + kMaxQueries * kTile;
  float* l = m + kMaxQueries;
  float* sums = l + kMaxQueries;
  for (int h = 0; h < w.queries; h++) {
    widen_vector(w.q[h], d, q + h * padded);
    m[h] = -__builtin_inff();
    l[h] = 0.0f;
  }
  memset(o, 0, size_t(w.queries) * size_t(padded) * 4);
  const T* keys = static_cast<const T*>(w.k);
  const T* values = static_cast<const T*>(w.v);
  const int32_t first = w.first[0], last = w.last[0];
  for (int32_t base = first / kTile * kTile; base <= last; base += kTile) {
    const int lo = first > base ? int(first - base) : 0;
    const int hi = last - base < kTile - 1 ? int(last - base) + 1 : kTile;
    if (padded == d) {
      const T *k[kTile], *v[kTile];
      for (int key = lo; key < hi; key++) {
        const int64_t at = cache_offset(w, base + key);
        k[key] = keys + at;
        v[key] = values + at;
      }
      row_tile_all_heads<T>(k, v, lo, hi, padded, w.scale, w.queries, q, o, s, m, l, sums);
    } else {
      const float *k[kTile], *v[kTile];
      for (int key = lo; key < hi; key++) {
        const int64_t at = cache_offset(w, base + key);
        widen_vector(keys + at, d, tile + key * padded);
        widen_vector(values + at, d, tile + (kTile + key) * padded);
        k[key] = tile + key * padded;
        v[key] = tile + (kTile + key) * padded;
      }
      row_tile_all_heads<float>(k, v, lo, hi, padded, w.scale, w.queries, q, o, s, m, l, sums);
    }
  }
  for (int h = 0; h < w.queries; h++) finish_query(o + h * padded, l[h], d, w.bf16_out, w.out[h]);
}

// All queries see the same keys.
static void attend_row(const AttentionWork& w, float* scratch) {
  if (w.bf16) attend_row_as<uint16_t>(w, scratch);
  else attend_row_as<float>(w, scratch);
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
