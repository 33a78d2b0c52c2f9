// Attention of many queries that read one key/value head: lanes run over queries, sixteen at a time, so that nothing is
// reduced across lanes and a tile of keys serves them all. Bit-equal to attention_row_kernels.h.
#pragma once
#include "attention_cache.h"
#include "attention_row_kernels.h"
#include "math16.h"

namespace colibri {
namespace COLIBRI_ISA {

// Keys, and elements of head_dim, that the registers hold at a time.
#if defined(COLIBRI_SIMD_AVX512)
constexpr int kBlockKeys = 4, kBlockDims = 16;
#elif defined(COLIBRI_SIMD_AVX2)
constexpr int kBlockKeys = 1, kBlockDims = 4;
#else
constexpr int kBlockKeys = 1, kBlockDims = 2;
#endif

// Sums of lane l and of lane l + 8 of the natural order, already added, for kKeys keys.
template <int kKeys>
COLIBRI_INLINE void lane_pair(const float* q, const float* const* k, int64_t padded, int l, f32x16* t) {
  f32x16 a[kKeys], b[kKeys];
  for (int j = 0; j < kKeys; j++) a[j] = b[j] = zero16();
  for (int64_t i = l; i < padded; i += 16) {
    const f32x16 x = load(q + i * 16), y = load(q + (i + 8) * 16);
    for (int j = 0; j < kKeys; j++) {
      a[j] = fma(x, set1(k[j][i]), a[j]);
      b[j] = fma(y, set1(k[j][i + 8]), b[j]);
    }
  }
  for (int j = 0; j < kKeys; j++) t[j] = add(a[j], b[j]);
}

template <int kKeys>
COLIBRI_INLINE void add_all(f32x16* a, const f32x16* b) {
  for (int j = 0; j < kKeys; j++) a[j] = add(a[j], b[j]);
}

// The dot products of sixteen queries, transposed as q [padded][16], with kKeys keys; tree16's order of additions.
template <int kKeys>
COLIBRI_INLINE void dot_block(const float* q, const float* const* k, int64_t padded, f32x16* a) {
  f32x16 b[kKeys], c[kKeys], d[kKeys];
  lane_pair<kKeys>(q, k, padded, 0, a);
  lane_pair<kKeys>(q, k, padded, 4, b);
  add_all<kKeys>(a, b);
  lane_pair<kKeys>(q, k, padded, 2, b);
  lane_pair<kKeys>(q, k, padded, 6, c);
  add_all<kKeys>(b, c);
  add_all<kKeys>(a, b);
  lane_pair<kKeys>(q, k, padded, 1, b);
  lane_pair<kKeys>(q, k, padded, 5, c);
  add_all<kKeys>(b, c);
  lane_pair<kKeys>(q, k, padded, 3, c);
  lane_pair<kKeys>(q, k, padded, 7, d);
  add_all<kKeys>(c, d);
  add_all<kKeys>(b, c);
  add_all<kKeys>(a, b);
}

// What sixteen queries see of a tile.
struct BlockView {
  f32x16 first, last;  // visible keys within the tile, as numbers from -1 to 64
  mask16 any;          // queries that see some key
  bool all;            // every query sees every key
};

COLIBRI_INLINE float relative(int32_t position, int32_t base) {
  const int64_t r = int64_t(position) - base;
  return float(r < -1 ? -1 : r > kTile ? kTile : r);
}

COLIBRI_INLINE BlockView view_block(const int32_t* first, const int32_t* last, int32_t base) {
  float f[16], l[16];
  uint32_t any = 0;
  bool all = true;
  for (int i = 0; i < 16; i++) {
    f[i] = relative(first[i], base);
    l[i] = relative(last[i], base);
    any |= uint32_t(f[i] < kTile && l[i] >= 0) << i;
    all = all && f[i] <= 0 && l[i] >= kTile - 1;
  }
  return {load(f), load(l), from_bits(any), all};
}

COLIBRI_INLINE mask16 sees(const BlockView& view, int key) {
  const f32x16 number = set1(float(key));
  return from_bits(~(to_bits(less(view.last, number)) | to_bits(greater(view.first, number))) & 0xffffu);
}

// Scores of the keys of `visible` [16 queries] into s [64][16]; returns each query's largest.
template <int kKeys>
COLIBRI_INLINE void score_keys(const float* q, const float* tile, const int* keys, int64_t padded, float scale,
                               const BlockView& view, float* s, f32x16* top) {
  const float* k[kKeys];
  for (int j = 0; j < kKeys; j++) k[j] = tile + keys[j] * padded;
  f32x16 dot[kKeys];
  dot_block<kKeys>(q, k, padded, dot);
  for (int j = 0; j < kKeys; j++) {
    f32x16 score = mul(dot[j], set1(scale));
    if (!view.all) score = select(sees(view, keys[j]), score, set1(-__builtin_inff()));
    store(s + keys[j] * 16, score);
    *top = max(*top, score);
  }
}

// p(l) = ((p0 + p1) + p2) + p3 of the tile's four groups of sixteen keys, plus the same of l + 8.
COLIBRI_INLINE f32x16 group_pair(const float* p, int l) {
  f32x16 t[2];
  for (int i = 0; i < 2; i++) {
    const float* at = p + (l + 8 * i) * 16;
    t[i] = add(add(add(load(at), load(at + 256)), load(at + 512)), load(at + 768));
  }
  return add(t[0], t[1]);
}

COLIBRI_INLINE f32x16 sum_tile(const float* p) {
  const f32x16 a = add(group_pair(p, 0), group_pair(p, 4)), b = add(group_pair(p, 2), group_pair(p, 6));
  const f32x16 c = add(group_pair(p, 1), group_pair(p, 5)), d = add(group_pair(p, 3), group_pair(p, 7));
  return add(add(a, b), add(c, d));
}

// o[i .. i + kDims) of sixteen queries, [padded][16].
template <int kDims, bool kAll>
COLIBRI_INLINE void add_values_block(const float* p, const float* tile, const int* keys, int count, int64_t padded,
                                     const uint32_t* seen, f32x16 factor, float* o, int64_t i) {
  f32x16 acc[kDims];
  for (int c = 0; c < kDims; c++) acc[c] = mul(load(o + (i + c) * 16), factor);
  for (int n = 0; n < count; n++) {
    const f32x16 x = load(p + keys[n] * 16);
    const float* v = tile + keys[n] * padded + i;
    if (kAll) {
      for (int c = 0; c < kDims; c++) acc[c] = fma(x, set1(v[c]), acc[c]);
    } else {
      const mask16 m = from_bits(seen[n]);
      for (int c = 0; c < kDims; c++) acc[c] = select(m, fma(x, set1(v[c]), acc[c]), acc[c]);
    }
  }
  for (int c = 0; c < kDims; c++) store(o + (i + c) * 16, acc[c]);
}

// One tile for sixteen queries; `keys`: the `count` keys of it that anybody sees, ascending.
static void block_tile(const float* k, const float* v, const int* keys, int count, int64_t padded, float scale,
                       const BlockView& view, const float* q, float* o, float* m, float* l, float* p) {
  f32x16 top = set1(-__builtin_inff());
  int n = 0;
  for (; n + kBlockKeys <= count; n += kBlockKeys) score_keys<kBlockKeys>(q, k, keys + n, padded, scale, view, p, &top);
  for (; n < count; n++) score_keys<1>(q, k, keys + n, padded, scale, view, p, &top);

  // A query that sees nothing here keeps m, l and o: its probabilities are exp32(-inf) = 0 and its factor is 1.
  const f32x16 old = load(m), next = max(old, top);
  const f32x16 shift = select(view.any, next, zero16());
  const f32x16 factor = select(view.any, exp32(sub(old, next)), set1(1.0f));
  store(m, select(view.any, next, old));
  uint32_t seen[kTile];
  n = 0;
  for (int key = 0; key < kTile; key++) {
    if (n < count && keys[n] == key) {
      store(p + key * 16, exp32(sub(load(p + key * 16), shift)));
      seen[n++] = to_bits(sees(view, key));
    } else {
      store(p + key * 16, zero16());
    }
  }
  store(l, add(mul(load(l), factor), sum_tile(p)));
  for (int64_t i = 0; i < padded; i += kBlockDims) {
    if (view.all) add_values_block<kBlockDims, true>(p, v, keys, count, padded, seen, factor, o, i);
    else add_values_block<kBlockDims, false>(p, v, keys, count, padded, seen, factor, o, i);
  }
}

// The keys of a tile that some query sees, as bits.
COLIBRI_INLINE uint64_t visible_keys(const AttentionWork& w, int32_t base) {
  uint64_t visible = 0;
  for (int i = 0; i < w.queries; i++) {
    const int64_t lo = w.first[i] > base ? int64_t(w.first[i]) - base : 0;
    const int64_t hi = w.last[i] - int64_t(base) < kTile - 1 ? int64_t(w.last[i]) - base : kTile - 1;
    if (lo <= hi) visible |= (~uint64_t(0) << lo) & (~uint64_t(0) >> (kTile - 1 - hi));
  }
  return visible;
}

template <class T>
static void attend_block_as(const AttentionWork& w, float* scratch) {
  const int64_t d = w.head_dim, padded = (d + 15) / 16 * 16;
  float* k = scratch;
  float* v = k + kTile * padded;
  float* q = v + kTile * padded;           // [blocks][padded][16]
  float* o = q + kMaxQueries * padded;     // the same
  float* p = o + kMaxQueries * padded;     // [64][16]
  float* m = p + kMaxQueries * kTile;
  float* l = m + kMaxQueries;
  const int blocks = (w.queries + 15) / 16;
  int32_t first[kMaxQueries], last[kMaxQueries];
  int32_t begin = w.first[0], end = w.last[0];
  for (int i = 0; i < blocks * 16; i++) {
    // Lanes beyond the last query repeat it.
    const int from = i < w.queries ? i : w.queries - 1;
    first[i] = w.first[from];
    last[i] = w.last[from];
    if (first[i] < begin) begin = first[i];
    if (last[i] > end) end = last[i];
    m[i] = -__builtin_inff();
    l[i] = 0.0f;
    float* column = q + i / 16 * padded * 16 + i % 16;
    for (int64_t c = 0; c < padded; c++) column[c * 16] = c < d ? w.q[from][c] : 0.0f;
  }
  memset(o, 0, size_t(blocks) * size_t(padded) * 64);

  for (int32_t base = begin / kTile * kTile; base <= end; base += kTile) {
    const uint64_t visible = visible_keys(w, base);
    int keys[kTile];
    int count = 0;
    for (uint64_t left = visible; left; left &= left - 1) {
      const int key = __builtin_ctzll(left);
      const int64_t at = cache_offset(w, base + key);
      widen_vector(static_cast<const T*>(w.k) + at, d, k + key * padded);
      widen_vector(static_cast<const T*>(w.v) + at, d, v + key * padded);
      keys[count++] = key;
    }
    for (int b = 0; b < blocks && count; b++) {
      const BlockView view = view_block(first + b * 16, last + b * 16, base);
      if (!to_bits(view.any)) continue;
      block_tile(k, v, keys, count, padded, w.scale, view, q + b * padded * 16, o + b * padded * 16, m + b * 16, l + b * 16, p);
    }
  }

  float row[16];
  for (int i = 0; i < w.queries; i++) {
    const float* column = o + i / 16 * padded * 16 + i % 16;
    for (int64_t c = 0; c < d; c += 16) {
      const int n = clamp16(d - c);
      for (int j = 0; j < 16; j++) row[j] = column[(c + j) * 16];
      finish_query(row, l[i], n, w.bf16_out, static_cast<char*>(w.out[i]) + c * (w.bf16_out ? 2 : 4));
    }
  }
}

static void attend_block(const AttentionWork& w, float* scratch) {
  if (w.bf16) attend_block_as<uint16_t>(w, scratch);
  else attend_block_as<float>(w, scratch);
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
