// The scalar functions of docs/numerics.md, step by step: no contraction, no approximation, subnormals flushed
// (--fmad=false --ftz=true --prec-div=true --prec-sqrt=true).
#pragma once
#include "seam.cuh"

__device__ inline float widen_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

// Copied values flush, too; a product with one would be optimised away.
__device__ inline float flush(float x) {
  u32 bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0 ? __uint_as_float(bits & 0x80000000u) : x;
}

__device__ inline u16 round_bf16(float x) {
  u32 bits = __float_as_uint(flush(x));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
  return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ inline bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

__device__ inline float exp32(float x) {
  if (x != x) return x;
  if (x > 88.72283f) return __uint_as_float(0x7f800000u);
  if (x < -87.33654f) return 0.f;
  float n = rintf(__fmul_rn(x, 1.44269504f));
  float r = __fmaf_rn(n, -0.693359375f, x);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __fmaf_rn(p, r, 1.3981999507e-3f);
  p = __fmaf_rn(p, r, 8.3334519073e-3f);
  p = __fmaf_rn(p, r, 4.1665795894e-2f);
  p = __fmaf_rn(p, r, 1.6666665459e-1f);
  p = __fmaf_rn(p, r, 5.0000001201e-1f);
  float y = __fmaf_rn(p, __fmul_rn(r, r), __fadd_rn(r, 1.f));
  int whole = (int)n, half = whole >> 1;
  float low = __uint_as_float((u32)(half + 127) << 23), high = __uint_as_float((u32)(whole - half + 127) << 23);
  return __fmul_rn(__fmul_rn(y, low), high);
}

__device__ inline float silu_mul(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.f, exp32(-gate))), up);
}

// Sum over 16 neighbouring lanes: l + (l + 8), then 4, 2, 1. Only the lowest lane of each 16 has it.
__device__ inline float tree16(float x) {
  for (int step = 8; step; step >>= 1) x = __fadd_rn(x, __shfl_down_sync(0xffffffffu, x, step, 16));
  return x;
}
