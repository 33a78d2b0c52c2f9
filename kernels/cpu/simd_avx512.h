// f32x16 on AVX-512F/BW/DQ/VL, with AVX512_BF16 for rounding to bf16 where the unit is compiled with it.
#pragma once
#include <immintrin.h>

namespace colibri {
namespace COLIBRI_ISA {

struct f32x16 {
  __m512 v;
};
struct mask16 {
  __mmask16 v;
};

// The native vector of the GEMM tiles.
using native = f32x16;
constexpr int kNativeLanes = 16;

COLIBRI_INLINE f32x16 zero16() { return {_mm512_setzero_ps()}; }
COLIBRI_INLINE f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
COLIBRI_INLINE __mmask16 low_mask(int n) { return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1u); }

COLIBRI_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
COLIBRI_INLINE void store(float* p, f32x16 x) { _mm512_storeu_ps(p, x.v); }
COLIBRI_INLINE f32x16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(low_mask(n), p)}; }
COLIBRI_INLINE f32x16 load_n(const float* p, int n, float fill) {
  return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), low_mask(n), p)};
}
COLIBRI_INLINE void store_n(float* p, f32x16 x, int n) { _mm512_mask_storeu_ps(p, low_mask(n), x.v); }

COLIBRI_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
COLIBRI_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
COLIBRI_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
COLIBRI_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
COLIBRI_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
COLIBRI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
COLIBRI_INLINE float fma1(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
COLIBRI_INLINE float sqrt1(float a) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a))); }
// a > b ? a : b, so b when either is NaN.
COLIBRI_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
// a < b ? a : b
COLIBRI_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
COLIBRI_INLINE f32x16 neg(f32x16 a) {
  return {_mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(int(0x80000000u))))};
}
// Nearest even; |x| < 2^22.
COLIBRI_INLINE f32x16 rint(f32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// (y * 2^(n >> 1)) * 2^(n - (n >> 1)) for integral n, |n| <= 250.
COLIBRI_INLINE f32x16 scale_pow2(f32x16 y, f32x16 n) {
  const __m512i i = _mm512_cvtps_epi32(n.v);
  const __m512i half = _mm512_srai_epi32(i, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
  const __m512 b = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(i, half), bias), 23));
  return {_mm512_mul_ps(_mm512_mul_ps(y.v, a), b)};
}

COLIBRI_INLINE mask16 first_n(int n) { return {low_mask(n)}; }
COLIBRI_INLINE mask16 from_bits(uint32_t bits) { return {__mmask16(bits)}; }
COLIBRI_INLINE uint32_t to_bits(mask16 m) { return m.v; }
COLIBRI_INLINE mask16 less(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
COLIBRI_INLINE mask16 greater(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
COLIBRI_INLINE mask16 equal(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
COLIBRI_INLINE mask16 is_nan(f32x16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
// m ? a : b
COLIBRI_INLINE f32x16 select(mask16 m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }

COLIBRI_INLINE __m512 widen_bits(__m256i h) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
COLIBRI_INLINE f32x16 load_bf16(const uint16_t* p) {
  return {widen_bits(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
COLIBRI_INLINE f32x16 load_bf16_n(const uint16_t* p, int n) {
  return {widen_bits(_mm256_maskz_loadu_epi16(low_mask(n), p))};
}
COLIBRI_INLINE f32x16 load_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
COLIBRI_INLINE f32x16 load_fp16_n(const uint16_t* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(low_mask(n), p))};
}

#if defined(__AVX512BF16__)
COLIBRI_INLINE __m256i narrow_bf16(f32x16 a) { return (__m256i)_mm512_cvtneps_pbh(a.v); }
#else
COLIBRI_INLINE __m256i narrow_bf16(f32x16 a) {
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i magnitude = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
  const __m512i high = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 tiny = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x00800000));
  const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
  r = _mm512_mask_and_epi32(r, tiny, high, _mm512_set1_epi32(0x8000));
  r = _mm512_mask_or_epi32(r, nan, high, _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(r);
}
#endif
COLIBRI_INLINE void store_bf16(uint16_t* p, f32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(a));
}
COLIBRI_INLINE void store_bf16_n(uint16_t* p, f32x16 a, int n) {
  _mm256_mask_storeu_epi16(p, low_mask(n), narrow_bf16(a));
}
COLIBRI_INLINE f32x16 round_bf16(f32x16 a) { return {widen_bits(narrow_bf16(a))}; }

// Integral values from -128 to 127.
COLIBRI_INLINE void store_s8(signed char* p, f32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

// l + (l+8), l + (l+4), l + (l+2), l + (l+1)
COLIBRI_INLINE float tree16(f32x16 a) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  const __m128 z = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
}
COLIBRI_INLINE float max16(f32x16 a) {
  const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  const __m128 z = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
}

// ---- native vector of the GEMM tiles ----
COLIBRI_INLINE native native_zero() { return zero16(); }
COLIBRI_INLINE native native_set1(float x) { return set1(x); }
COLIBRI_INLINE native native_load(const float* p) { return load(p); }
COLIBRI_INLINE f32x16 join(const native* p) { return p[0]; }
COLIBRI_INLINE void split(f32x16 a, native* p) { p[0] = a; }

// Pairs [16][2] of bf16 or fp16 -> the even and the odd elements, widened.
COLIBRI_INLINE void load_pairs_bf16(const void* p, native& even, native& odd) {
  const __m512i x = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000u))));
}
COLIBRI_INLINE void load_pairs_fp16(const void* p, native& even, native& odd) {
  const __m512i x = _mm512_loadu_si512(p);
  even.v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
  odd.v = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
}

}  // namespace COLIBRI_ISA
}  // namespace colibri
