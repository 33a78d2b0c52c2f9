// Element by element.
#pragma once
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

static void add_inplace(float* x, const float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, add(load(x + i), load(y + i)));
  const int tail = clamp16(n - i);
  if (tail) store_n(x + i, add(load_n(x + i, tail), load_n(y + i, tail)), tail);
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
