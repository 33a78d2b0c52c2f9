// RoPE of one row's query and key heads; K and V go to their place in the cache.
#pragma once
#include "kernel_table.h"
#include "math16.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

COLIBRI_INLINE void put(float* p, f32x16 x, int n) { n == 16 ? store(p, x) : store_n(p, x, n); }
COLIBRI_INLINE void put(uint16_t* p, f32x16 x, int n) { n == 16 ? store_bf16(p, x) : store_bf16_n(p, x, n); }
COLIBRI_INLINE f32x16 take(const float* p, int n) { return n == 16 ? load(p) : load_n(p, n); }

template <class T>
COLIBRI_INLINE void rotate(const float* x, const float* cos, const float* sin, int64_t half, T* out) {
  for (int64_t i = 0; i < half; i += 16) {
    const int n = clamp16(half - i);
    const f32x16 first = take(x + i, n), second = take(x + half + i, n), c = take(cos + i, n), s = take(sin + i, n);
    put(out + i, sub(mul(first, c), mul(second, s)), n);
    put(out + half + i, add(mul(second, c), mul(first, s)), n);
  }
}

template <class T>
COLIBRI_INLINE void rope_and_store_as(const RopeRow& r) {
  const int64_t d = r.head_dim, half = d / 2;
  const float* x = r.qkv;
  for (int64_t h = 0; h < r.heads; h++, x += d) rotate(x, r.cos, r.sin, half, r.q + h * d);
  T* k = static_cast<T*>(r.k);
  for (int64_t h = 0; h < r.kv_heads; h++, x += d) rotate(x, r.cos, r.sin, half, k + h * r.head_stride);
  T* v = static_cast<T*>(r.v);
  for (int64_t h = 0; h < r.kv_heads; h++, x += d)
    for (int64_t i = 0; i < d; i += 16) {
      const int n = clamp16(d - i);
      put(v + h * r.head_stride + i, flush(take(x + i, n)), n);
    }
}

static void rope_and_store_row(const RopeRow& r) {
  if (r.bf16) rope_and_store_as<uint16_t>(r);
  else rope_and_store_as<float>(r);
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
