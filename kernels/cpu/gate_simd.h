// What only the gate needs of vectors: sixteen of them turned, and the maxima of sixteen at once.
#pragma once
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// NaN from NaN and infinities, else what it was: sums of x * 0.
COLIBRI_INLINE f32x16 poison(f32x16 sum, f32x16 x) {
#if defined(COLIBRI_SIMD_PORTABLE)
  return add(sum, mul(x, zero16()));
#else
  return fma(x, zero16(), sum);
#endif
}

#if defined(COLIBRI_SIMD_AVX512)

// Whole numbers.
COLIBRI_INLINE void store_int32(int32_t* p, f32x16 x) { _mm512_storeu_si512(p, _mm512_cvttps_epi32(x.v)); }

// v[j].lane[i] = what v[i].lane[j] was.
COLIBRI_INLINE void transpose16(f32x16* v) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(v[i].v, v[i + 1].v);
    a[i + 1] = _mm512_unpackhi_ps(v[i].v, v[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    const __m512 low0 = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88), low1 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
    const __m512 high0 = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd), high1 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
    v[i].v = _mm512_shuffle_f32x4(low0, low1, 0x88);
    v[i + 8].v = _mm512_shuffle_f32x4(low0, low1, 0xdd);
    v[i + 4].v = _mm512_shuffle_f32x4(high0, high1, 0x88);
    v[i + 12].v = _mm512_shuffle_f32x4(high0, high1, 0xdd);
  }
}

// Lane i: the largest of v[i], of 8 vectors (other lanes: anything) or 16.
template <int kVectorsIn>
COLIBRI_INLINE f32x16 maxima(const f32x16* v) {
  __m512 a[8], b[4], c[2];
  // Vector i must lie at (i % 4) * 4 + i / 4 for its maximum to come out in lane i; those from 8 on are the odd ones of a.
  for (int i = 0; i < 8; i++) {
    if (kVectorsIn == 8 && i % 2) {
      a[i] = a[i - 1];
      continue;
    }
    const int p = 2 * i, q = 2 * i + 1;
    const __m512 x = v[(p & 3) * 4 + (p >> 2)].v, y = v[(q & 3) * 4 + (q >> 2)].v;
    a[i] = _mm512_max_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  }
  for (int i = 0; i < 4; i++)
    b[i] = _mm512_max_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88), _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
  for (int i = 0; i < 2; i++)
    c[i] = _mm512_max_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44), _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
  return {_mm512_max_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd))};
}

#elif defined(COLIBRI_SIMD_AVX2)

COLIBRI_INLINE void store_int32(int32_t* p, f32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvttps_epi32(x.lo));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_cvttps_epi32(x.hi));
}

COLIBRI_INLINE void transpose8(__m256* v) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

COLIBRI_INLINE void transpose16(f32x16* v) {
  __m256 quarter[4][8];
  for (int i = 0; i < 8; i++) {
    quarter[0][i] = v[i].lo;
    quarter[1][i] = v[i].hi;
    quarter[2][i] = v[i + 8].lo;
    quarter[3][i] = v[i + 8].hi;
  }
  for (auto& q : quarter) transpose8(q);
  for (int i = 0; i < 8; i++) {
    v[i] = {quarter[0][i], quarter[2][i]};
    v[i + 8] = {quarter[1][i], quarter[3][i]};
  }
}

COLIBRI_INLINE __m256 maxima8(const f32x16* v) {
  __m256 a[8], b[4], c[2];
  for (int i = 0; i < 8; i++) {
    const f32x16& x = v[(i & 1) * 4 + (i >> 1)];
    a[i] = _mm256_max_ps(x.lo, x.hi);
  }
  for (int i = 0; i < 4; i++)
    b[i] = _mm256_max_ps(_mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x20), _mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x31));
  for (int i = 0; i < 2; i++)
    c[i] = _mm256_max_ps(_mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44), _mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
  return _mm256_max_ps(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xdd));
}
template <int kVectorsIn>
COLIBRI_INLINE f32x16 maxima(const f32x16* v) {
  const __m256 lo = maxima8(v);
  return {lo, kVectorsIn == 8 ? lo : maxima8(v + 8)};
}

#else

COLIBRI_INLINE void store_int32(int32_t* p, f32x16 x) {
  for (int i = 0; i < 16; i++) p[i] = int32_t(x.v[i]);
}

COLIBRI_INLINE void transpose16(f32x16* v) {
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < i; j++) {
      const float t = v[i].v[j];
      v[i].v[j] = v[j].v[i];
      v[j].v[i] = t;
    }
}
template <int kVectorsIn>
COLIBRI_INLINE f32x16 maxima(const f32x16* v) {
  f32x16 r = {};
  for (int i = 0; i < kVectorsIn; i++) r.v[i] = max16(v[i]);
  return r;
}

#endif

}  // namespace COLIBRI_ISA
}  // namespace colibri
