"""docs/numerics.md retold literally, to the bit: one rounding at a time, sharing nothing with the kernels.

`fma` is exact: the product of two fp32 is exact in float64, the sum is rounded to odd (Boldo and Melquiond, 2008), the
last rounding is to fp32. Values that overflow or are not finite are outside of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .support import Array, bf16

F32 = NDArray[np.float32]


def flushed(x: Any) -> F32:
    """fp32 with subnormals as zeros."""
    y = np.asarray(x, dtype=np.float32)
    return np.where(np.abs(y) < np.float32(2.0**-126), np.copysign(np.float32(0), y), y)


def fma(a: Any, b: Any, c: Any) -> F32:
    product = flushed(a).astype(np.float64) * flushed(b).astype(np.float64)
    addend = flushed(c).astype(np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    even_and_inexact = (error != 0) & ((total.view(np.int64) & 1) == 0)
    return flushed(np.where(even_and_inexact, odd, total))


def add(a: Any, b: Any) -> F32:
    return flushed(flushed(a) + flushed(b))


def sub(a: Any, b: Any) -> F32:
    return flushed(flushed(a) - flushed(b))


def mul(a: Any, b: Any) -> F32:
    return flushed(flushed(a) * flushed(b))


def div(a: Any, b: Any) -> F32:
    return flushed(flushed(a) / flushed(b))


def widened(x: Array) -> F32:
    if x.dtype == np.uint16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return flushed(x)


def rounded(x: F32, dtype: str) -> Array:
    return bf16(x) if dtype == "bf16" else x


def product(x: Array, weight: Array) -> F32:
    """Pairs of K ascending, the odd element first; x [rows, k], weight [n, k]."""
    a, w = widened(x), widened(weight)
    if a.shape[1] % 2:
        a, w = (np.pad(m, ((0, 0), (0, 1))) for m in (a, w))
    acc = np.zeros((len(a), len(w)), dtype=np.float32)
    for j in range(0, a.shape[1], 2):
        acc = fma(a[:, None, j + 1], w[None, :, j + 1], acc)
        acc = fma(a[:, None, j], w[None, :, j], acc)
    return acc


def tree16(lanes: F32) -> F32:
    """[..., 16] -> [...]: l + (l+8), l + (l+4), l + (l+2), l + (l+1)."""
    for width in (8, 4, 2, 1):
        lanes = add(lanes[..., :width], lanes[..., width : 2 * width])
    return lanes[..., 0]


def dot(a: F32, b: F32) -> F32:
    """tree16(lanes fma(a, b)) over the last axis, the ragged end padded with zeros."""
    missing = -a.shape[-1] % 16
    a, b = (np.concatenate([m, np.zeros((*m.shape[:-1], missing), np.float32)], axis=-1) for m in (a, b))
    acc = np.zeros((*np.broadcast_shapes(a.shape, b.shape)[:-1], 16), dtype=np.float32)
    for i in range(0, a.shape[-1], 16):
        acc = fma(a[..., i : i + 16], b[..., i : i + 16], acc)
    return tree16(acc)


def rms_norm(x: F32, weight: F32, eps: float, dtype: str) -> Array:
    s = dot(x, x)
    inv = div(1, flushed(np.sqrt(add(div(s, np.float32(x.shape[1])), np.float32(eps)))))
    return rounded(mul(mul(x, inv[:, None]), weight), dtype)


def exp32(x: Any) -> F32:
    x = flushed(x)
    inside = (x <= np.float32(88.72283)) & (x >= np.float32(-87.33654))
    t = np.where(inside, x, np.float32(0))
    n = np.rint(mul(t, np.float32(1.44269504)))
    r = fma(n, np.float32(-0.693359375), t)
    r = fma(n, np.float32(2.12194440e-4), r)
    p: F32 = np.full_like(r, 1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, np.float32(c))
    y = fma(p, mul(r, r), add(r, 1))
    half = n.astype(np.int32) >> 1
    with np.errstate(over="ignore"):
        e = flushed(np.ldexp(np.ldexp(y, half), n.astype(np.int32) - half))
    return np.where(inside, e, np.where(x > 0, np.float32(np.inf), np.float32(0)))


def silu_mul(g: F32, u: F32) -> F32:
    return mul(div(g, add(1, exp32(-g))), u)


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """x [rows, heads, d]; cos, sin [rows, d / 2]."""
    half = x.shape[2] // 2
    a, b, c, s = x[..., :half], x[..., half:], cos[:, None], sin[:, None]
    return np.concatenate([sub(mul(a, c), mul(b, s)), add(mul(b, c), mul(a, s))], axis=-1)


def attention(q: F32, k: F32, v: F32, position: int, window: int | None) -> F32:
    """One query [d] on the keys and values [length, d] of its head, tile by tile."""
    scale = np.float32(1.0 / np.sqrt(np.float64(len(q))))
    first = 0 if window is None else max(0, position - window + 1)
    m = total = None
    o = np.zeros(len(q), dtype=np.float32)
    for base in range(first // 64 * 64, position + 1, 64):
        keys = [key for key in range(base, base + 64) if first <= key <= position]
        s = mul(dot(q[None], k[keys]), scale)
        top = s.max()
        following = top if m is None else max(m, top)
        p = np.zeros(64, dtype=np.float32)
        p[[key - base for key in keys]] = exp32(sub(s, following))
        groups = p.reshape(4, 16)
        t = tree16(add(add(add(groups[0], groups[1]), groups[2]), groups[3]))
        if m is None:
            total = t
        else:
            a = exp32(sub(m, following))
            total, o = add(mul(total, a), t), mul(o, a)
        m = following
        for key in keys:
            o = fma(p[key - base], v[key], o)
    return div(o, total)


def gate(logits: F32, k: int) -> tuple[list[int], F32]:
    """One row."""
    chosen = sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:k]
    e = exp32(sub(logits[chosen], logits[chosen[0]]))
    total = e[0]
    for term in e[1:]:
        total = add(total, term)
    return chosen, div(e, total)


def expert(x: Array, gate_w: Array, up_w: Array, down_w: Array, dtype: str) -> F32:
    """x [rows, hidden] -> fp32 [rows, hidden]."""
    return product(rounded(silu_mul(product(x, gate_w), product(x, up_w)), dtype), down_w)


def quantised_rows(x: Array, group: int) -> tuple[Array, F32]:
    """Numbers [rows, k] and scales [rows, groups] of a product with int8 or int4 weights."""
    a = widened(x)
    numbers = np.zeros(a.shape, dtype=np.int64)
    scales = []
    for start in range(0, a.shape[1], group):
        part = a[:, start : start + group]
        largest = np.abs(part).max(axis=1)
        scale = div(largest, 127)
        inverse = np.array([0 if s == 0 else div(127, m) for s, m in zip(scale, largest, strict=True)])
        numbers[:, start : start + group] = np.rint(mul(part, inverse[:, None]))
        scales.append(scale)
    return numbers, np.array(scales, dtype=np.float32).T


def quantised_product(x: Array, numbers: Array, scales: F32, group: int) -> F32:
    """x [rows, k]; the weights' numbers [n, k] and scales [n, groups]: exact sums in a group, groups ascending."""
    a, a_scales = quantised_rows(x, group)
    acc = np.zeros((len(a), len(numbers)), dtype=np.float32)
    for g, start in enumerate(range(0, a.shape[1], group)):
        sums = a[:, start : start + group] @ numbers[:, start : start + group].T.astype(np.int64)
        acc = fma(sums.astype(np.float32), mul(a_scales[:, None, g], scales[None, :, g]), acc)
    return acc


Numbers = tuple[Array, F32]  # of a matrix: numbers, scales


def quantised_expert(x: Array, gate: Numbers, up: Numbers, down: Numbers, group: int) -> F32:
    """The hidden values stay fp32 until they are quantised, whatever the dtype of x."""
    hidden = silu_mul(quantised_product(x, *gate, group), quantised_product(x, *up, group))
    return quantised_product(hidden, *down, group)
