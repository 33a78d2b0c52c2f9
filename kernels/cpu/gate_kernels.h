// The k largest logits of a row and their softmax.
#pragma once
#include "kernel_table.h"
#include "math16.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// Inserts behind every kept value that is not smaller, so that ties stay with the lower id; at most k are kept.
COLIBRI_INLINE int insert_sorted(float* values, uint16_t* ids, int kept, int k, float value, uint16_t id) {
  int at = kept < k ? kept : k - 1;
  for (; at > 0 && value > values[at - 1]; at--) {
    values[at] = values[at - 1];
    ids[at] = ids[at - 1];
  }
  values[at] = value;
  ids[at] = id;
  return kept < k ? kept + 1 : k;
}

// Slots hold the k largest, 1 <= k <= 16 and k <= experts. False, and nothing written, when a logit is NaN or Inf.
static bool gate_row(const float* logits, int64_t experts, int k, uint16_t* ids, float* weights) {
  const f32x16 largest = set1(3.4028234663852886e38f), smallest = set1(-3.4028234663852886e38f);
  for (int64_t i = 0; i < experts; i += 16) {
    const f32x16 v = load_n(logits + i, clamp16(experts - i));
    if (to_bits(greater(v, largest)) | to_bits(less(v, smallest)) | to_bits(is_nan(v))) return false;
  }
  float values[16] = {};
  int kept = 0;
  for (int64_t i = 0; i < experts; i += 16) {
    const int n = clamp16(experts - i);
    uint32_t candidates = n == 16 ? 0xffffu : (1u << n) - 1u;
    if (kept == k) candidates &= to_bits(greater(load_n(logits + i, n), set1(values[k - 1])));
    for (; candidates; candidates &= candidates - 1u) {
      const int64_t e = i + __builtin_ctz(candidates);
      if (kept < k || logits[e] > values[k - 1]) kept = insert_sorted(values, ids, kept, k, logits[e], uint16_t(e));
    }
  }
  float e[16];
  store(e, exp32(sub(load(values), set1(values[0]))));
  float sum = e[0];
  for (int s = 1; s < k; s++) sum = sum + e[s];
  for (int s = 0; s < k; s++) weights[s] = e[s] / sum;
  return true;
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
