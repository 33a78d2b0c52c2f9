// tree16 of sixteen vectors at once: the same additions, but each instruction does several of them.
#pragma once
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

#if defined(COLIBRI_SIMD_AVX512)

// Where vector i must lie in the input of tree16x16, so that its sum comes out in lane i.
COLIBRI_INLINE int tree_slot(int i) { return (i & 3) * 4 + (i >> 2); }

// Halves, quarters, pairs, neighbours; the 128-bit parts of two vectors are dealt out so that all sixteen lanes work.
COLIBRI_INLINE f32x16 tree16x16(const float* p) {
  __m512 a[8], b[4], c[2];
  for (int i = 0; i < 8; i++) {
    const __m512 x = _mm512_loadu_ps(p + i * 32), y = _mm512_loadu_ps(p + i * 32 + 16);
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  }
  for (int i = 0; i < 4; i++)
    b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
  for (int i = 0; i < 2; i++)
    c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                         _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
  return {_mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd))};
}

#elif defined(COLIBRI_SIMD_AVX2)

COLIBRI_INLINE int tree_slot(int i) { return (i & 8) + (i & 3) * 2 + (i >> 2 & 1); }

COLIBRI_INLINE __m256 tree16x8(const float* p) {
  __m256 a[8], b[4], c[2];
  for (int i = 0; i < 8; i++) a[i] = _mm256_add_ps(_mm256_loadu_ps(p + i * 16), _mm256_loadu_ps(p + i * 16 + 8));
  for (int i = 0; i < 4; i++)
    b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x20),
                         _mm256_permute2f128_ps(a[2 * i], a[2 * i + 1], 0x31));
  for (int i = 0; i < 2; i++)
    c[i] = _mm256_add_ps(_mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                         _mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
  return _mm256_add_ps(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xdd));
}
COLIBRI_INLINE f32x16 tree16x16(const float* p) { return {tree16x8(p), tree16x8(p + 128)}; }

#else

COLIBRI_INLINE int tree_slot(int i) { return i; }
COLIBRI_INLINE f32x16 tree16x16(const float* p) {
  float sums[16];
  for (int i = 0; i < 16; i++) sums[i] = tree16(load(p + i * 16));
  return load(sums);
}

#endif

}  // namespace COLIBRI_ISA
}  // namespace colibri
