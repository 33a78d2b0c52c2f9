// f32x16 as a plain array: any machine, and the oracle of the bits.
//
// fma is one hardware instruction where the target always has it (aarch64). On baseline x86-64 it is computed in
// double: the product of two fp32 is exact there, the sum is rounded to odd (Boldo and Melquiond, 2008, "Emulation of
// a FMA and correctly rounded sums"), so that the last rounding to fp32 is the only one that counts. DAZ acts on the
// conversions of the operands, FTZ on the last one, exactly as in a hardware fma.
#pragma once

namespace colibri {
namespace COLIBRI_ISA {

struct f32x16 {
  float v[16];
};
struct mask16 {
  uint32_t v;
};

using native = f32x16;
constexpr int kNativeLanes = 16;

#if defined(__aarch64__) || defined(__FMA__)
#define COLIBRI_HAS_FMA
#define COLIBRI_FOR_LANES for (int i = 0; i < 16; i++)
#else
// Baseline x86-64 has too few registers for such vectors: its loops over lanes stay loops. Unrolled, which the compiler would
// do by itself, they are five times the code and take it minutes.
#define COLIBRI_FOR_LANES _Pragma("GCC unroll 1") for (int i = 0; i < 16; i++)
#endif
#define COLIBRI_LANES(expr)            \
  do {                                 \
    f32x16 r;                          \
    COLIBRI_FOR_LANES r.v[i] = (expr); \
    return r;                          \
  } while (0)

#if defined(COLIBRI_HAS_FMA)
COLIBRI_INLINE float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
COLIBRI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { COLIBRI_LANES(fma1(a.v[i], b.v[i], c.v[i])); }
#else
// Two lanes at once: the vector extension of GCC and Clang.
typedef float float2 __attribute__((vector_size(8)));
typedef double double2 __attribute__((vector_size(16)));
typedef int64_t long2 __attribute__((vector_size(16)));
COLIBRI_INLINE float2 fma2(float2 a, float2 b, float2 c) {
  const double2 p = __builtin_convertvector(a, double2) * __builtin_convertvector(b, double2);
  const double2 d = __builtin_convertvector(c, double2);
  const double2 s = p + d;
  const double2 back = s - p;
  const double2 error = (p - (s - back)) + (d - back);  // Knuth's TwoSum: s + error == p + d
  // Inexact and the nearest is even: take the odd neighbour on the side of the error. A comparison is -1 where true;
  // NaN compares false and is left alone.
  const long2 bits = (long2)s;
  const long2 side = (long2)(error < 0) - (long2)(error > 0);
  const long2 negative = (long2)(s < 0);
  const long2 step = (side ^ negative) - negative;
  return __builtin_convertvector((double2)(bits + (step & ((bits & 1) - 1))), float2);
}
COLIBRI_INLINE float fma1(float a, float b, float c) { return fma2(float2{a, a}, float2{b, b}, float2{c, c})[0]; }
COLIBRI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  for (int i = 0; i < 16; i += 2) {
    float2 x, y, z;
    memcpy(&x, a.v + i, 8);
    memcpy(&y, b.v + i, 8);
    memcpy(&z, c.v + i, 8);
    z = fma2(x, y, z);
    memcpy(c.v + i, &z, 8);
  }
  return c;
}
#endif
COLIBRI_INLINE float sqrt1(float a) { return __builtin_sqrtf(a); }

COLIBRI_INLINE f32x16 zero16() { COLIBRI_LANES(0.0f); }
COLIBRI_INLINE f32x16 set1(float x) { COLIBRI_LANES(x); }
COLIBRI_INLINE f32x16 load(const float* p) {
  f32x16 r;
  memcpy(r.v, p, 64);
  return r;
}
COLIBRI_INLINE void store(float* p, f32x16 x) { memcpy(p, x.v, 64); }
COLIBRI_INLINE f32x16 load_n(const float* p, int n, float fill) { COLIBRI_LANES(i < n ? p[i] : fill); }
COLIBRI_INLINE f32x16 load_n(const float* p, int n) { return load_n(p, n, 0.0f); }
COLIBRI_INLINE void store_n(float* p, f32x16 x, int n) {
  for (int i = 0; i < 16 && i < n; i++) p[i] = x.v[i];
}

COLIBRI_INLINE f32x16 add(f32x16 a, f32x16 b) { COLIBRI_LANES(a.v[i] + b.v[i]); }
COLIBRI_INLINE f32x16 sub(f32x16 a, f32x16 b) { COLIBRI_LANES(a.v[i] - b.v[i]); }
COLIBRI_INLINE f32x16 mul(f32x16 a, f32x16 b) { COLIBRI_LANES(a.v[i] * b.v[i]); }
COLIBRI_INLINE f32x16 div(f32x16 a, f32x16 b) { COLIBRI_LANES(a.v[i] / b.v[i]); }
COLIBRI_INLINE f32x16 sqrt(f32x16 a) { COLIBRI_LANES(__builtin_sqrtf(a.v[i])); }
// a > b ? a : b, so b when either is NaN.
COLIBRI_INLINE f32x16 max(f32x16 a, f32x16 b) { COLIBRI_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
// a < b ? a : b
COLIBRI_INLINE f32x16 min(f32x16 a, f32x16 b) { COLIBRI_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
COLIBRI_INLINE f32x16 neg(f32x16 a) { COLIBRI_LANES(-a.v[i]); }
// Nearest even; |x| < 2^22. Adding 1.5 * 2^23 leaves no fraction bits.
COLIBRI_INLINE f32x16 rint(f32x16 a) { COLIBRI_LANES((a.v[i] + 12582912.0f) - 12582912.0f); }
COLIBRI_INLINE float pow2(int n) {
  const uint32_t u = uint32_t(n + 127) << 23;
  float x;
  memcpy(&x, &u, 4);
  return x;
}
COLIBRI_INLINE float scale1(float y, int n) { return (y * pow2(n >> 1)) * pow2(n - (n >> 1)); }
// (y * 2^(n >> 1)) * 2^(n - (n >> 1)) for integral n; a lane whose n is out of range (NaN) is replaced by its caller.
COLIBRI_INLINE f32x16 scale_pow2(f32x16 y, f32x16 n) {
  COLIBRI_LANES(scale1(y.v[i], (n.v[i] >= -250.0f && n.v[i] <= 250.0f) ? int(n.v[i]) : 0));
}

#define COLIBRI_MASK(expr)                                  \
  do {                                                      \
    mask16 r{0};                                            \
    COLIBRI_FOR_LANES r.v |= uint32_t((expr) ? 1 : 0) << i; \
    return r;                                               \
  } while (0)

COLIBRI_INLINE mask16 first_n(int n) { return {n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u}; }
COLIBRI_INLINE mask16 from_bits(uint32_t bits) { return {bits & 0xffffu}; }
COLIBRI_INLINE uint32_t to_bits(mask16 m) { return m.v; }
COLIBRI_INLINE mask16 less(f32x16 a, f32x16 b) { COLIBRI_MASK(a.v[i] < b.v[i]); }
COLIBRI_INLINE mask16 greater(f32x16 a, f32x16 b) { COLIBRI_MASK(a.v[i] > b.v[i]); }
COLIBRI_INLINE mask16 equal(f32x16 a, f32x16 b) { COLIBRI_MASK(a.v[i] == b.v[i]); }
COLIBRI_INLINE mask16 is_nan(f32x16 a) { COLIBRI_MASK(a.v[i] != a.v[i]); }
// m ? a : b
COLIBRI_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) { COLIBRI_LANES((m.v >> i & 1u) ? a.v[i] : b.v[i]); }

COLIBRI_INLINE float widen_bf16(uint16_t h) {
  const uint32_t u = uint32_t(h) << 16;
  float x;
  memcpy(&x, &u, 4);
  return x;
}
// Exact, subnormals included: they are scaled as integers, since DAZ would lose them.
COLIBRI_INLINE float widen_fp16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t exponent = h >> 10 & 0x1fu, fraction = h & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -magnitude : magnitude;
  }
  const uint32_t quiet = exponent == 31 && fraction ? 0x400000u : 0u;
  const uint32_t u = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13 | quiet;
  float x;
  memcpy(&x, &u, 4);
  return x;
}
COLIBRI_INLINE uint16_t narrow1(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  const uint32_t magnitude = u & 0x7fffffffu;
  const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
  return uint16_t(magnitude > 0x7f800000u ? (u >> 16 | 0x40u) : magnitude < 0x00800000u ? (u >> 16 & 0x8000u) : rounded);
}
COLIBRI_INLINE f32x16 load_bf16(const uint16_t* p) { COLIBRI_LANES(widen_bf16(p[i])); }
COLIBRI_INLINE f32x16 load_bf16_n(const uint16_t* p, int n) { COLIBRI_LANES(i < n ? widen_bf16(p[i]) : 0.0f); }
COLIBRI_INLINE f32x16 load_fp16(const uint16_t* p) { COLIBRI_LANES(widen_fp16(p[i])); }
COLIBRI_INLINE f32x16 load_fp16_n(const uint16_t* p, int n) { COLIBRI_LANES(i < n ? widen_fp16(p[i]) : 0.0f); }
COLIBRI_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  COLIBRI_FOR_LANES p[i] = narrow1(a.v[i]);
}
COLIBRI_INLINE void store_bf16_n(uint16_t* p, f32x16 a, int n) {
  for (int i = 0; i < 16 && i < n; i++) p[i] = narrow1(a.v[i]);
}
COLIBRI_INLINE f32x16 round_bf16(f32x16 a) { COLIBRI_LANES(widen_bf16(narrow1(a.v[i]))); }

// Integral values from -128 to 127.
COLIBRI_INLINE void store_s8(signed char* p, f32x16 a) {
  COLIBRI_FOR_LANES p[i] = static_cast<signed char>(a.v[i]);
}

// l + (l+8), l + (l+4), l + (l+2), l + (l+1)
COLIBRI_INLINE float tree16(f32x16 a) {
  for (int width = 8; width; width >>= 1)
    for (int i = 0; i < width; i++) a.v[i] = a.v[i] + a.v[i + width];
  return a.v[0];
}
COLIBRI_INLINE float max16(f32x16 a) {
  for (int width = 8; width; width >>= 1)
    for (int i = 0; i < width; i++) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
  return a.v[0];
}

// ---- native vector of the GEMM tiles ----
COLIBRI_INLINE native native_zero() { return zero16(); }
COLIBRI_INLINE native native_set1(float x) { return set1(x); }
COLIBRI_INLINE native native_load(const float* p) { return load(p); }
COLIBRI_INLINE f32x16 join(const native* p) { return p[0]; }
COLIBRI_INLINE void split(f32x16 a, native* p) { p[0] = a; }

// Pairs [16][2] of bf16 or fp16 -> the even and the odd elements, widened.
COLIBRI_INLINE void load_pairs_bf16(const void* p, native& even, native& odd) {
  uint16_t t[32];
  memcpy(t, p, 64);
  COLIBRI_FOR_LANES {
    even.v[i] = widen_bf16(t[2 * i]);
    odd.v[i] = widen_bf16(t[2 * i + 1]);
  }
}
COLIBRI_INLINE void load_pairs_fp16(const void* p, native& even, native& odd) {
  uint16_t t[32];
  memcpy(t, p, 64);
  COLIBRI_FOR_LANES {
    even.v[i] = widen_fp16(t[2 * i]);
    odd.v[i] = widen_fp16(t[2 * i + 1]);
  }
}

#undef COLIBRI_HAS_FMA
#undef COLIBRI_FOR_LANES
#undef COLIBRI_LANES
#undef COLIBRI_MASK

}  // namespace COLIBRI_ISA
}  // namespace colibri
