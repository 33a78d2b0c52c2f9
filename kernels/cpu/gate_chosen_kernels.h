// What is chosen of sixteen rows, what orders their logits, and how the results come of both.
#pragma once
#include "gate_simd.h"
#include "gate_types.h"
#include "math16.h"

#define COLIBRI_INLINE_LAMBDA __attribute__((always_inline))

namespace colibri {
namespace COLIBRI_ISA {

// The best of sixteen rows: slot s of row r at [s][r].
struct Chosen {
  float logits[kMaxChosen][16];
  int32_t ids[kMaxChosen][16];
  uint32_t bad;  // rows with NaN or Inf, a bit each
};

// What orders sixteen logits of one row, or, of a column, one logit of sixteen rows.
struct ByLogit {};
struct ByInt16 {
  f32x16 scale;
};
COLIBRI_INLINE f32x16 key_of(const ByLogit&, f32x16 x) { return x; }
COLIBRI_INLINE f32x16 key_of(const ByInt16& by, f32x16 x) { return rint(mul(x, by.scale)); }

COLIBRI_INLINE f32x16 magnitude(f32x16 x) { return max(x, neg(x)); }
// 32767 over the largest magnitude; 0, so that all are equal, where that is no finite number.
COLIBRI_INLINE f32x16 int16_scale(f32x16 largest) {
  const f32x16 scale = div(set1(32767.0f), largest);
  // Above zero as well: of zeros alone the largest may be -0.
  return select(less(scale, set1(__builtin_inff())), max(scale, zero16()), zero16());
}

// The order of one row.
COLIBRI_INLINE void order_row(ByLogit&, const float*, int64_t) {}
COLIBRI_INLINE void order_row(ByInt16& by, const float* x, int64_t n) {
  f32x16 largest = zero16();
  for (int64_t i = 0; i < n; i += 16) largest = max(largest, magnitude(load_n(x + i, clamp16(n - i))));
  by.scale = int16_scale(set1(max16(largest)));
}

// Softmax over the chosen logits, in slot order, and where the results go.
static void finish_rows(const GateRows& g, int64_t row, int rows, Chosen& c) {
  const int k = g.k;
  if (g.int16) {  // what was compared were keys
    const float* x = g.logits + row * g.experts;
    for (int s = 0; s < k; s++)
      for (int r = 0; r < rows; r++) c.logits[s][r] = x[r * g.experts + c.ids[s][r]];
  }
  const mask16 bad = from_bits(c.bad);
  f32x16 largest = load(c.logits[0]);
  for (int s = 1; s < k; s++) largest = max(largest, load(c.logits[s]));
  f32x16 sum = zero16();
  for (int s = 0; s < k; s++) {
    const f32x16 e = exp32(sub(load(c.logits[s]), largest));
    store(c.logits[s], e);
    sum = s ? add(sum, e) : e;
  }
  for (int s = 0; s < k; s++) store(c.logits[s], select(bad, zero16(), div(load(c.logits[s]), sum)));
  if (c.bad)
    for (int s = 0; s < k; s++)
      for (int r = 0; r < 16; r++)
        if (c.bad >> r & 1u) c.ids[s][r] = 0;
  uint16_t* ids = g.ids + row * k;
  float* weights = g.weights + row * k;
  if (k == 2) {
    uint16_t pairs[32];
    float shares[32];
    for (int r = 0; r < 16; r++) {
      pairs[2 * r] = uint16_t(c.ids[0][r]);
      pairs[2 * r + 1] = uint16_t(c.ids[1][r]);
      shares[2 * r] = c.logits[0][r];
      shares[2 * r + 1] = c.logits[1][r];
    }
    memcpy(ids, pairs, size_t(rows) * 4);
    memcpy(weights, shares, size_t(rows) * 8);
  } else {
    for (int r = 0; r < rows; r++)
      for (int s = 0; s < k; s++) {
        ids[r * k + s] = uint16_t(c.ids[s][r]);
        weights[r * k + s] = c.logits[s][r];
      }
  }
  for (int r = 0; r < rows; r++) g.ok[row + r] = !(c.bad >> r & 1u);
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
