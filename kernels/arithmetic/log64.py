"""The natural logarithm in float64 with the same bits on every machine: +, -, *, / only (libm chooses code by
processor).
"""

from __future__ import annotations

import math

LN2_HIGH = float.fromhex("0x1.62e42feep-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")


def log64(x: float) -> float:
    """Natural logarithm: x = m 2^e, m in [1/sqrt(2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)) as a
    series."""
    m, e = math.frexp(x)
    if m < 0.70710678118654752:
        m, e = m * 2.0, e - 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = 0.0
    for n in range(25, 1, -2):  # s^2 <= 0.0295: the first term left out is below 1e-20
        series = (series + 1.0 / n) * z
    return e * LN2_HIGH + (2.0 * s + (2.0 * s * series + e * LN2_LOW))
