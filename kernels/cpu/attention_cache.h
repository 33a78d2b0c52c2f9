// Reading the paged cache.
#pragma once
#include "dense_types.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

COLIBRI_INLINE f32x16 load_cache(const float* p) { return load(p); }
COLIBRI_INLINE f32x16 load_cache(const uint16_t* p) { return load_bf16(p); }
COLIBRI_INLINE f32x16 load_cache_n(const float* p, int n) { return load_n(p, n); }
COLIBRI_INLINE f32x16 load_cache_n(const uint16_t* p, int n) { return load_bf16_n(p, n); }

// Element offset of a position's vector, the same in K and V.
COLIBRI_INLINE int64_t cache_offset(const AttentionWork& w, int32_t position) {
  const int64_t page = w.pages[position >> w.page_shift];
  const int64_t slot = position & ((1 << w.page_shift) - 1);
  return (((page * w.kv_heads + w.kv_head) << w.page_shift) + slot) * w.head_dim;
}

// Widened and padded with zeros to a multiple of 16.
template <class T>
COLIBRI_INLINE void widen_vector(const T* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(to + i, load_cache(from + i));
  if (i < n) store(to + i, load_cache_n(from + i, clamp16(n - i)));
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
