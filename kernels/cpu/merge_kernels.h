// The merge of one row.
#pragma once
#include "math16.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

COLIBRI_INLINE f32x16 sum_in_order(const float* const* terms, int64_t count, int64_t i, int n) {
  f32x16 y = flush(n == 16 ? load(terms[0] + i) : load_n(terms[0] + i, n));
  for (int64_t t = 1; t < count; t++) y = add(y, n == 16 ? load(terms[t] + i) : load_n(terms[t] + i, n));
  return y;
}

static void merge_row(const float* const* terms, int64_t count, int64_t n, float* y) {
  if (!count) {
    memset(y, 0, size_t(n) * 4);
    return;
  }
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, sum_in_order(terms, count, i, 16));
  const int tail = clamp16(n - i);
  if (tail) store_n(y + i, sum_in_order(terms, count, i, tail), tail);
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
