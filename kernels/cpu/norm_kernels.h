// RMSNorm of one row.
#pragma once
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

static void rms_norm_row(const float* x, const float* weight, int64_t n, float eps, float* y, uint16_t* y_bf16) {
  f32x16 acc = zero16();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const f32x16 v = load(x + i);
    acc = fma(v, v, acc);
  }
  const int tail = clamp16(n - i);
  if (tail) {
    const f32x16 v = load_n(x + i, tail);
    acc = fma(v, v, acc);
  }
  const float mean = tree16(acc) / float(n);
  const f32x16 inv = set1(1.0f / sqrt1(mean + eps));
  for (i = 0; i + 16 <= n; i += 16) {
    const f32x16 v = mul(mul(load(x + i), inv), load(weight + i));
    if (y_bf16) store_bf16(y_bf16 + i, v);
    else store(y + i, v);
  }
  if (tail) {
    const f32x16 v = mul(mul(load_n(x + i, tail), inv), load_n(weight + i, tail));
    if (y_bf16) store_bf16_n(y_bf16 + i, v, tail);
    else store_n(y + i, v, tail);
  }
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
