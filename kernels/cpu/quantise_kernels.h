// 32 rows of a matrix -> one panel of int8 or int4 numbers and bf16 scales (docs/numerics.md, "Quantising weights").
#pragma once
#include "quant_types.h"
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// One group of a panel, columns side by side.
struct GroupColumns {
  float w[kMaxGroup][kPanel];    // int4: times 2^-exponent, which is exact and keeps squares in range
  float importance[kMaxGroup][kPanel];  // int4: how much a squared error counts
  float extreme[kPanel];         // of each column, the number of largest magnitude (the first of equals)
  float unit[kPanel];            // 2^exponent
  int n;
};

COLIBRI_INLINE float power_of_two(int e) { return float_from_bits(uint32_t(e + 127) << 23); }

static void gather_group(const QuantPanel& p, int64_t k0, bool scaled, GroupColumns& g) {
  const size_t element = p.from == kWeightF32 ? 4 : 2;
  const int64_t left = p.k - k0;
  g.n = left < p.group ? int(left) : p.group;
  memset(g.w, 0, sizeof g.w);
  for (int c = 0; c < kPanel; c++) {
    float value[kMaxGroup], extreme = 0.0f, most = 0.0f;
    for (int i = 0; i < g.n; i += 16) {
      alignas(64) char raw[64] = {};
      if (p.row[c]) memcpy(raw, static_cast<const char*>(p.row[c]) + size_t(k0 + i) * element, size_t(clamp16(g.n - i)) * element);
      const uint16_t* half = reinterpret_cast<const uint16_t*>(raw);
      const f32x16 x = p.from == kWeightF32 ? load(reinterpret_cast<const float*>(raw))
                       : p.from == kWeightBf16 ? load_bf16(half) : load_fp16(half);
      store(value + i, x);
    }
    for (int i = 0; i < g.n; i++) {
      const float magnitude = value[i] < 0.0f ? -value[i] : value[i];
      if (magnitude > most) most = magnitude, extreme = value[i];
    }
    int e = int(float_bits(most) >> 23) - 127;
    e = !scaled ? 0 : e < -100 ? -100 : e > 100 ? 100 : e;
    const float down = power_of_two(-e);
    for (int i = 0; i < g.n; i++) g.w[i][c] = value[i] * down;
    g.extreme[c] = extreme * down;
    g.unit[c] = power_of_two(e);
  }
}

// That of the input; where it is not known, sqrt(mean of the squares + square): large weights count more, since clipping
// them hurts a model more than its squared error says.
static void weigh_group(const QuantPanel& p, int64_t k0, GroupColumns& g) {
  for (int half = 0; half < 2; half++) {
    f32x16 squares = zero16();
    for (int i = 0; i < g.n; i++) {
      const f32x16 w = load(g.w[i] + 16 * half);
      squares = add(squares, mul(w, w));
    }
    const f32x16 mean = div(squares, set1(float(g.n)));
    for (int i = 0; i < g.n; i++) {
      const f32x16 w = load(g.w[i] + 16 * half);
      store(g.importance[i] + 16 * half, p.importance ? set1(p.importance[k0 + i]) : sqrt(add(mean, mul(w, w))));
    }
  }
}

COLIBRI_INLINE f32x16 clamp(f32x16 x, float low, float high) {
  x = max(x, set1(low));
  return select(greater(x, set1(high)), set1(high), x);
}
// 1 / x, and 0 for 0.
COLIBRI_INLINE f32x16 inverse_of(f32x16 x) { return select(equal(x, zero16()), zero16(), div(set1(1.0f), x)); }

// Where a search for the scales of 16 columns stands.
struct BestScale {
  f32x16 scale, error;
};

// Takes `scale` where its weighted squared error is smaller; returns the scale that suits its numbers best.
COLIBRI_INLINE f32x16 consider(const GroupColumns& g, int half, f32x16 scale, BestScale& best) {
  const f32x16 inverse = inverse_of(scale);
  f32x16 error = zero16(), along = zero16(), square = zero16();
  for (int i = 0; i < g.n; i++) {
    const f32x16 w = load(g.w[i] + 16 * half), importance = load(g.importance[i] + 16 * half);
    const f32x16 q = clamp(rint(mul(w, inverse)), -8.0f, 7.0f);
    const f32x16 off = sub(w, mul(q, scale)), weighted = mul(importance, q);
    error = add(error, mul(importance, mul(off, off)));
    along = add(along, mul(weighted, w));
    square = add(square, mul(weighted, q));
  }
  const mask16 better = less(error, best.error);
  best.scale = select(better, scale, best.scale);
  best.error = select(better, error, best.error);
  return round_bf16(select(greater(square, zero16()), div(along, square), scale));
}

// Where the number of largest magnitude may lie on the scale; -8 alone is plain rounding.
constexpr float kInt4Starts[] = {-8.0f, -7.0f, -7.5f, -8.5f, -9.0f, -9.5f, -10.0f, -11.0f, -12.0f,
                                 6.5f,  7.0f,  7.5f,  8.0f,  8.5f,  9.0f,  10.0f,  11.0f};
constexpr int kInt4Refinements = 2;

COLIBRI_INLINE f32x16 int4_scale(const GroupColumns& g, int half) {
  const f32x16 extreme = load(g.extreme + 16 * half);
  BestScale best{zero16(), set1(__builtin_inff())};
  for (float start : kInt4Starts) {
    f32x16 scale = round_bf16(div(extreme, set1(start)));
    for (int i = 0; i <= kInt4Refinements; i++) scale = consider(g, half, scale, best);
  }
  return best.scale;
}

COLIBRI_INLINE f32x16 int8_scale(const GroupColumns& g, int half) {
  const f32x16 extreme = load(g.extreme + 16 * half);
  return round_bf16(div(max(extreme, neg(extreme)), set1(127.0f)));
}

static void quantise_panel(const QuantPanel& p) {
  static_assert(kOctet == 8, "two quads");
  const bool wide = p.to == kWeightInt8;
  char* out = static_cast<char*>(p.out);
  GroupColumns g;
  for (int64_t k0 = 0; k0 < p.octets * kOctet; k0 += p.group) {
    gather_group(p, k0, !wide, g);
    if (!wide) weigh_group(p, k0, g);
    const int64_t rest = p.octets * kOctet - k0;
    const int padded = rest < p.group ? int(rest) : p.group;
    const int64_t bytes = padded / kOctet * octet_bytes(p.to);
    unsigned char* const numbers = reinterpret_cast<unsigned char*>(out + kScaleBytes);
    memset(numbers, 0, size_t(bytes));
    for (int half = 0; half < 2; half++) {
      const f32x16 scale = wide ? int8_scale(g, half) : int4_scale(g, half);
      const f32x16 stored = mul(scale, load(g.unit + 16 * half));
      store_bf16(reinterpret_cast<uint16_t*>(out) + 16 * half, select(equal(stored, zero16()), zero16(), stored));
      const f32x16 inverse = inverse_of(scale);
      for (int k = 0; k < padded; k++) {
        const f32x16 w = load(g.w[k] + 16 * half);
        const f32x16 q = clamp(rint(mul(w, inverse)), wide ? -127.0f : -8.0f, wide ? 127.0f : 7.0f);
        signed char number[16];
        store_s8(number, q);
        for (int c = 0; c < 16; c++) {
          const int value = number[c] + zero_point(p.to), column = 16 * half + c;
          if (wide) numbers[(k / 4 * kPanel + column) * 4 + k % 4] = static_cast<unsigned char>(value);
          else numbers[(k / 8 * kPanel + column) * 4 + k % 4] |= static_cast<unsigned char>(value << k % 8 / 4 * 4);
        }
      }
    }
    out += kScaleBytes + bytes;
  }
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
