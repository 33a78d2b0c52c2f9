// One row of a packed matrix, widened.
#pragma once
#include "kernel_table.h"
#include "math16.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// `column`: the row's first element in its panel (docs/numerics.md, packed layout).
template <class T, class Load>
COLIBRI_INLINE void embed_as(const T* column, int64_t k, float* y, Load load_16) {
  for (int64_t i = 0; i < k; i += 16) {
    const int n = clamp16(k - i);
    T t[16] = {};
    for (int j = 0; j < n; j++) {
      const int64_t at = i + j;
      t[j] = sizeof(T) == 4 ? column[at * 32] : column[(at / 2) * 64 + at % 2];
    }
    store_n(y + i, flush(load_16(t)), n);
  }
}

static void embed_row(const void* column, WeightType type, int64_t k, float* y) {
  const uint16_t* half = static_cast<const uint16_t*>(column);
  if (type == kWeightBf16) embed_as(half, k, y, [](const uint16_t* t) { return load_bf16(t); });
  else if (type == kWeightFp16) embed_as(half, k, y, [](const uint16_t* t) { return load_fp16(t); });
  else embed_as(static_cast<const float*>(column), k, y, [](const float* t) { return load(t); });
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
