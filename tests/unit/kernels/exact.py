"""The contract of docs/numerics.md in exact rational arithmetic: one number at a time, slow, sharing no code with a
backend."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

_TINY = Fraction(1, 2**126)


def bits_of(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def from_bits(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _flush(x: float) -> float:
    """DAZ: a subnormal operand is a zero of its sign."""
    return math.copysign(0.0, x) if abs(x) < float(_TINY) else x


def rounded(value: Fraction, zero: float = 0.0) -> float:
    """Nearest even binary32; a result below 2^-126 after rounding is a zero of its sign; an exact zero is `zero`."""
    if value == 0:
        return zero
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    result = round(magnitude / unit) * unit  # Fraction rounds half to even
    sign = -1.0 if value < 0 else 1.0
    if result < _TINY:
        return math.copysign(0.0, sign)
    if result >= Fraction(2) ** 128:
        return math.copysign(math.inf, sign)
    return sign * float(result)


def fma(a: float, b: float, c: float) -> float:
    """a * b + c with one rounding, finite operands."""
    a, b, c = _flush(a), _flush(b), _flush(c)
    product_sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    both_negative = product_sign < 0 and math.copysign(1.0, c) < 0
    exact_zero = -0.0 if a * b == 0 and c == 0 and both_negative else 0.0
    return rounded(Fraction(a) * Fraction(b) + Fraction(c), exact_zero)


def mul(a: float, b: float) -> float:
    a, b = _flush(a), _flush(b)
    zero = math.copysign(0.0, math.copysign(1.0, a) * math.copysign(1.0, b))
    return rounded(Fraction(a) * Fraction(b), zero)


def add(a: float, b: float) -> float:
    """Finite, or one operand infinite."""
    if math.isinf(a) or math.isinf(b):
        return a if math.isinf(a) else b
    a, b = _flush(a), _flush(b)
    zero = -0.0 if math.copysign(1.0, a) < 0 and math.copysign(1.0, b) < 0 and a == 0 and b == 0 else 0.0
    return rounded(Fraction(a) + Fraction(b), zero)


def div(a: float, b: float) -> float:
    """b not zero."""
    a, b = _flush(a), _flush(b)
    if math.isinf(b):
        return math.copysign(0.0, math.copysign(1.0, a) * math.copysign(1.0, b))
    zero = math.copysign(0.0, math.copysign(1.0, a) * math.copysign(1.0, b))
    return rounded(Fraction(a) / Fraction(b), zero)


def to_bf16(x: float) -> float:
    """Nearest even at 8 bits; subnormals to a signed zero."""
    bits = bits_of(_flush(x))
    return from_bits((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16)


def dot(x: F32, w: F32, *, even_first: bool = False) -> float:
    """One accumulator over pairs of K, the odd element first; `even_first` shows that this counts."""
    k = len(x) + len(x) % 2
    xs, ws = [float(v) for v in x] + [0.0], [float(v) for v in w] + [0.0]
    acc = 0.0
    for j in range(0, k, 2):
        for i in (j, j + 1) if even_first else (j + 1, j):
            acc = fma(xs[i], ws[i], acc)
    return acc


def matrix(x: F32, w: F32) -> F32:
    """x [rows, k] W^T, W [n, k]."""
    return np.array([[dot(row, column) for column in w] for row in x], dtype=np.float32).reshape(
        len(x), len(w)
    )


def exp32(x: float) -> float:
    if x > float(np.float32(88.72283)):
        return math.inf
    if x < float(np.float32(-87.33654)):
        return 0.0
    f = [float(np.float32(v)) for v in (1.44269504, -0.693359375, 2.12194440e-4)]
    n = float(np.rint(np.float32(mul(x, f[0]))))
    r = fma(n, f[2], fma(n, f[1], x))
    p = float(np.float32(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, float(np.float32(c)))
    y = fma(p, mul(r, r), add(r, 1.0))
    half = int(n) >> 1
    return mul(mul(y, 2.0**half), 2.0 ** (int(n) - half))


def silu_mul(g: float, u: float) -> float:
    return mul(div(g, add(1.0, exp32(-g))), u)


def expert(row: F32, gate: F32, up: F32, down: F32, *, bf16: bool) -> list[float]:
    """down(silu(gate(x)) * up(x)) of one row, unweighted."""
    h = [silu_mul(dot(row, g), dot(row, u)) for g, u in zip(gate, up, strict=True)]
    h32 = np.array([to_bf16(v) if bf16 else v for v in h], dtype=np.float32)
    return [dot(h32, d) for d in down]
