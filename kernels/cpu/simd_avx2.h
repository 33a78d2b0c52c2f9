// f32x16 on AVX2, FMA and F16C: two 8-lane registers.
#pragma once
#include <immintrin.h>

namespace colibri {
namespace COLIBRI_ISA {

struct native {
  __m256 v;
};
constexpr int kNativeLanes = 8;

struct f32x16 {
  __m256 lo, hi;
};
// All ones or all zeros in each lane.
struct mask16 {
  __m256 lo, hi;
};

COLIBRI_INLINE f32x16 zero16() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
COLIBRI_INLINE f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }

COLIBRI_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
COLIBRI_INLINE void store(float* p, f32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
COLIBRI_INLINE __m256i low_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
COLIBRI_INLINE f32x16 load_n(const float* p, int n) {
  f32x16 r = zero16();
  if (n > 0) r.lo = _mm256_maskload_ps(p, low_lanes(n));
  if (n > 8) r.hi = _mm256_maskload_ps(p + 8, low_lanes(n - 8));
  return r;
}
COLIBRI_INLINE void store_n(float* p, f32x16 x, int n) {
  if (n > 0) _mm256_maskstore_ps(p, low_lanes(n), x.lo);
  if (n > 8) _mm256_maskstore_ps(p + 8, low_lanes(n - 8), x.hi);
}

COLIBRI_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
COLIBRI_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
COLIBRI_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
COLIBRI_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
COLIBRI_INLINE f32x16 sqrt(f32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
COLIBRI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
COLIBRI_INLINE native fma(native a, native b, native c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
COLIBRI_INLINE float fma1(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
COLIBRI_INLINE float sqrt1(float a) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a))); }
// a > b ? a : b, so b when either is NaN.
COLIBRI_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
// a < b ? a : b
COLIBRI_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
COLIBRI_INLINE f32x16 neg(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
// Nearest even; |x| < 2^22.
COLIBRI_INLINE f32x16 rint(f32x16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
COLIBRI_INLINE __m256 scale_half(__m256 y, __m256 n) {
  const __m256i i = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(i, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(y, a), b);
}
// (y * 2^(n >> 1)) * 2^(n - (n >> 1)) for integral n, |n| <= 250.
COLIBRI_INLINE f32x16 scale_pow2(f32x16 y, f32x16 n) { return {scale_half(y.lo, n.lo), scale_half(y.hi, n.hi)}; }

COLIBRI_INLINE mask16 first_n(int n) {
  return {_mm256_castsi256_ps(low_lanes(n)), _mm256_castsi256_ps(low_lanes(n - 8))};
}
COLIBRI_INLINE mask16 from_bits(uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i lo = _mm256_and_si256(_mm256_set1_epi32(int(bits & 0xffu)), lane);
  const __m256i hi = _mm256_and_si256(_mm256_set1_epi32(int((bits >> 8) & 0xffu)), lane);
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(lo, lane)), _mm256_castsi256_ps(_mm256_cmpeq_epi32(hi, lane))};
}
COLIBRI_INLINE uint32_t to_bits(mask16 m) {
  return uint32_t(_mm256_movemask_ps(m.lo)) | uint32_t(_mm256_movemask_ps(m.hi)) << 8;
}
COLIBRI_INLINE mask16 less(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
COLIBRI_INLINE mask16 greater(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
COLIBRI_INLINE mask16 equal(f32x16 a, f32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
COLIBRI_INLINE mask16 is_nan(f32x16 a) {
  return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
// m ? a : b
COLIBRI_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
COLIBRI_INLINE f32x16 load_n(const float* p, int n, float fill) { return select(first_n(n), load_n(p, n), set1(fill)); }

COLIBRI_INLINE __m256 widen_bits(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
COLIBRI_INLINE f32x16 load_bf16(const uint16_t* p) {
  return {widen_bits(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen_bits(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
COLIBRI_INLINE f32x16 load_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
COLIBRI_INLINE f32x16 load_bf16_n(const uint16_t* p, int n) {
  uint16_t t[16] = {};
  if (n > 0) memcpy(t, p, size_t(n < 16 ? n : 16) * 2);
  return load_bf16(t);
}
COLIBRI_INLINE f32x16 load_fp16_n(const uint16_t* p, int n) {
  uint16_t t[16] = {};
  if (n > 0) memcpy(t, p, size_t(n < 16 ? n : 16) * 2);
  return load_fp16(t);
}

// bf16 patterns in the low halves of eight 32-bit lanes.
COLIBRI_INLINE __m256i narrow_half(__m256 a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
  const __m256i high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  const __m256i flushed = _mm256_blendv_epi8(r, _mm256_and_si256(high, _mm256_set1_epi32(0x8000)), tiny);
  return _mm256_blendv_epi8(flushed, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}
COLIBRI_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  const __m256i packed = _mm256_packus_epi32(narrow_half(a.lo), narrow_half(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
COLIBRI_INLINE void store_bf16_n(uint16_t* p, f32x16 a, int n) {
  uint16_t t[16];
  store_bf16(t, a);
  if (n > 0) memcpy(p, t, size_t(n < 16 ? n : 16) * 2);
}
COLIBRI_INLINE f32x16 round_bf16(f32x16 a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(narrow_half(a.lo), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(narrow_half(a.hi), 16))};
}

// Integral values from -128 to 127.
COLIBRI_INLINE void store_s8(signed char* p, f32x16 a) {
  const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(pairs, 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

// l + (l+8), l + (l+4), l + (l+2), l + (l+1)
COLIBRI_INLINE float tree16(f32x16 a) {
  const __m256 y = _mm256_add_ps(a.lo, a.hi);
  const __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  const __m128 z = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
}
COLIBRI_INLINE float max16(f32x16 a) {
  const __m256 y = _mm256_max_ps(a.lo, a.hi);
  const __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  const __m128 z = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
}

// ---- native vector of the GEMM tiles ----
COLIBRI_INLINE native native_zero() { return {_mm256_setzero_ps()}; }
COLIBRI_INLINE native native_set1(float x) { return {_mm256_set1_ps(x)}; }
COLIBRI_INLINE native native_load(const float* p) { return {_mm256_loadu_ps(p)}; }
COLIBRI_INLINE f32x16 join(const native* p) { return {p[0].v, p[1].v}; }
COLIBRI_INLINE void split(f32x16 a, native* p) {
  p[0].v = a.lo;
  p[1].v = a.hi;
}

// Pairs [8][2] of bf16 or fp16 -> the even and the odd elements, widened.
COLIBRI_INLINE void load_pairs_bf16(const void* p, native& even, native& odd) {
  const __m256i x = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  even.v = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  odd.v = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000u))));
}
COLIBRI_INLINE void load_pairs_fp16(const void* p, native& even, native& odd) {
  const __m256i x = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i y = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, order), 0xd8);
  even.v = _mm256_cvtph_ps(_mm256_castsi256_si128(y));
  odd.v = _mm256_cvtph_ps(_mm256_extracti128_si256(y, 1));
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
