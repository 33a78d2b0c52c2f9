// Passes over the logits of a whole vocabulary.
#pragma once
#include "math16.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// The largest of n > 0 values; false when one is NaN or +Inf.
static bool largest_logit(const float* x, int64_t n, float* largest) {
  const float infinity = __builtin_inff();
  f32x16 top = set1(-infinity);
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const int count = clamp16(n - i);
    const f32x16 v = count == 16 ? load(x + i) : load_n(x + i, count, -infinity);
    bad |= to_bits(is_nan(v)) | to_bits(equal(v, set1(infinity)));
    top = max(top, v);
  }
  *largest = max16(top);
  return !bad;
}

// First index that equals `value` (-0 = +0); n when none does.
static int64_t first_equal(const float* x, int64_t n, float value) {
  for (int64_t i = 0; i < n; i += 16) {
    const int count = clamp16(n - i);
    const uint32_t inside = count == 16 ? 0xffffu : (1u << count) - 1u;
    const uint32_t hit = to_bits(equal(load_n(x + i, count), set1(value))) & inside;
    if (hit) return i + __builtin_ctz(hit);
  }
  return n;
}

// z = x / temperature, e = exp32(z - largest / temperature); returns largest / temperature.
static float temper(const float* x, int64_t n, float largest, float temperature, float* z, float* e) {
  const float top = largest / temperature;
  for (int64_t i = 0; i < n; i += 16) {
    const int count = clamp16(n - i);
    const f32x16 v = div(load_n(x + i, count), set1(temperature));
    store_n(z + i, v, count);
    store_n(e + i, exp32(sub(v, set1(top))), count);
  }
  return top;
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
