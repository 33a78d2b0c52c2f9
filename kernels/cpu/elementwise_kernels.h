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

static uint64_t sum_words(const void* p, int64_t n) {
  uint64_t sums[32] = {};
  const char* bytes = static_cast<const char*>(p);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    uint64_t words[32];
    memcpy(words, bytes + i * 8, 256);
    for (int j = 0; j < 32; j++) sums[j] += words[j];
  }
  for (; i < n; i++) {
    uint64_t word;
    memcpy(&word, bytes + i * 8, 8);
    sums[0] += word;
  }
  for (int j = 1; j < 32; j++) sums[0] += sums[j];
  return sums[0];
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
