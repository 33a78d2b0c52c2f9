// exp32, silu_mul and the other elementary functions of docs/numerics.md, sixteen lanes at a time.
#pragma once
#include "simd.h"

namespace colibri {
namespace COLIBRI_ISA {

// Cephes expf with a two-step reduction; exp32(-inf) = 0, exp32(NaN) = NaN, above 88.72283 +inf, below -87.33654 zero.
COLIBRI_INLINE f32x16 exp32(f32x16 x) {
  const f32x16 n = rint(mul(x, set1(1.44269504f)));
  f32x16 r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  f32x16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  const f32x16 y = fma(p, mul(r, r), add(r, set1(1.0f)));
  f32x16 e = scale_pow2(y, n);
  e = select(greater(x, set1(88.72283f)), set1(__builtin_inff()), e);
  e = select(less(x, set1(-87.33654f)), zero16(), e);
  return select(is_nan(x), x, e);
}

// Subnormals to a zero of the same sign: for values that no arithmetic touches. DAZ makes them equal to zero here.
COLIBRI_INLINE f32x16 flush(f32x16 x) { return select(equal(x, zero16()), mul(x, zero16()), x); }

// (g / (1 + exp32(-g))) * u
COLIBRI_INLINE f32x16 silu_mul(f32x16 g, f32x16 u) { return mul(div(g, add(set1(1.0f), exp32(neg(g)))), u); }

}  // namespace COLIBRI_ISA
}  // namespace colibri
