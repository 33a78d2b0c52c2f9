// The one vector abstraction in which every kernel but the GEMM tiles is written: f32x16, sixteen fp32 lanes.
//
// Included only by the four instruction-path units (isa_*.cpp), each of which defines COLIBRI_ISA (its namespace) and
// one of COLIBRI_SIMD_AVX512 / COLIBRI_SIMD_AVX2 / COLIBRI_SIMD_PORTABLE. Everything here and in *_kernels.h has
// internal linkage AND lives in that namespace, and no standard library template may be used: the linker would be free
// to keep the AVX-512 copy of a shared inline function for all paths, an illegal instruction elsewhere.
//
// Every operation rounds once, to nearest even; fma() is the only fused one (docs/numerics.md). DAZ and FTZ come from
// the control register, which the pool's threads and the calling thread have set (float_control.h).
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define COLIBRI_INLINE static inline __attribute__((always_inline, unused))

// How often the gate's next loop is unrolled. Portable vectors live in memory, not in registers: there it would save nothing,
// and the compiler would take minutes.
#if defined(COLIBRI_SIMD_PORTABLE)
#define COLIBRI_UNROLL(n) _Pragma("GCC unroll 1")
#else
#define COLIBRI_PRAGMA(text) _Pragma(#text)
#define COLIBRI_UNROLL(n) COLIBRI_PRAGMA(GCC unroll n)
#endif

#if defined(COLIBRI_SIMD_AVX512)
#include "simd_avx512.h"
#elif defined(COLIBRI_SIMD_AVX2)
#include "simd_avx2.h"
#elif defined(COLIBRI_SIMD_PORTABLE)
#include "simd_portable.h"
#else
#error "define COLIBRI_SIMD_*"
#endif

namespace colibri {
namespace COLIBRI_ISA {

COLIBRI_INLINE uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

COLIBRI_INLINE float float_from_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

COLIBRI_INLINE float bf16_to_float(uint16_t h) { return float_from_bits(uint32_t(h) << 16); }

// Nearest even; below 2^-126 a zero of the same sign; NaN stays a quiet NaN: what vcvtneps2bf16 does.
COLIBRI_INLINE uint16_t float_to_bf16(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  if (magnitude < 0x00800000u) return uint16_t((u >> 16) & 0x8000u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Elements 0..n-1 of the 16 (n <= 0: none, n >= 16: all).
COLIBRI_INLINE int clamp16(int64_t n) { return n < 0 ? 0 : n > 16 ? 16 : int(n); }

}  // namespace COLIBRI_ISA
}  // namespace colibri
