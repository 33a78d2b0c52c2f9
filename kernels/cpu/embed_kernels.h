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

// scale * number, one rounding.
static void embed_quant_row(const void* panel, int column, WeightType type, int64_t k, int group, float* y) {
  const unsigned char* p = static_cast<const unsigned char*>(panel);
  for (int64_t k0 = 0; k0 < k; k0 += group) {
    const int64_t n = k - k0 < group ? k - k0 : group;
    uint16_t pattern;
    memcpy(&pattern, p + 2 * column, 2);
    const f32x16 scale = set1(bf16_to_float(pattern));
    p += kScaleBytes;
    for (int64_t i = 0; i < n; i += 16) {
      float number[16] = {};
      for (int j = 0; j < clamp16(n - i); j++) {
        const int64_t at = i + j;
        const int stored = type == kWeightInt8 ? p[(at / 4 * kPanel + column) * 4 + at % 4]
                                               : p[(at / 8 * kPanel + column) * 4 + at % 4] >> at % 8 / 4 * 4 & 15;
        number[j] = float(stored - zero_point(type));
      }
      store_n(y + k0 + i, mul(load(number), scale), clamp16(n - i));
    }
    p += (n + kOctet - 1) / kOctet * octet_bytes(type);
  }
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
