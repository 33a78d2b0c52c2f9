"""RoPE with the write to the paged cache, and attention over it.

Caches stay in host memory; only pages that the rows see travel to the device.
"""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, TILE, Array, ComputeMode, KvView, RopeTable
from colibri.kernels.checks.arrays import check_mode
from colibri.kernels.checks.attention import check_attention, check_rope
from colibri.kernels.cuda.device import Device
from colibri.kernels.cuda.rows import blocks

_ATTENTION_THREADS = 128


def rope_and_store(device: Device, block: int, qkv: F32, rope: RopeTable, kv: KvView, heads: int) -> F32:
    pages, slots = check_rope(qkv, rope, kv, heads)
    _, kv_heads, page, head_dim = kv.k.shape
    rows = len(qkv)
    q = device.empty(rows * heads * head_dim * 4)
    if rows:
        touched, place = np.unique(pages, return_inverse=True)
        k, v = (device.upload(np.ascontiguousarray(cache[touched])) for cache in (kv.k, kv.v))
        device.launch(
            "rope_and_store",
            blocks(rows * (heads + 2 * kv_heads) * head_dim // 2, block),
            block,
            0,
            device.upload(qkv),
            device.upload(rope.cos),
            device.upload(rope.sin),
            device.upload(place.astype(np.uint32).reshape(-1)),
            device.upload(slots.astype(np.uint32)),
            device.upload(kv.positions.astype(np.uint32)),
            q,
            k,
            v,
            np.uint32(rows),
            np.uint32(heads),
            np.uint32(kv_heads),
            np.uint32(head_dim),
            np.uint32(page),
            np.int32(kv.k.dtype == np.uint16),
        )
        for cache, written in ((kv.k, k), (kv.v, v)):
            cache[touched] = device.download(written, (len(touched), *cache.shape[1:]), cache.dtype)
    return device.download(q, (rows, heads * head_dim), np.float32)


def attention(device: Device, q: F32, kv: KvView, window: int | None, mode: ComputeMode) -> Array:
    check_mode(mode)
    first_key = check_attention(q, kv, window)
    _, kv_heads, page, head_dim = kv.k.shape
    bf16 = mode is ComputeMode.BF16
    dtype = np.dtype(np.uint16 if bf16 else np.float32)
    out = device.empty(q.size * dtype.itemsize)
    if q.size:
        seen = np.zeros(kv.page_table.shape, dtype=np.bool_)
        for sequence, first, last in zip(
            kv.row_sequence, first_key // page, kv.positions // page, strict=True
        ):
            seen[sequence, first : last + 1] = True
        used, place = np.unique(kv.page_table[seen], return_inverse=True)
        table = np.full(kv.page_table.shape, -1, dtype=np.int32)
        table[seen] = place.reshape(-1)
        heads = q.shape[1] // head_dim
        share = heads // kv_heads
        device.launch(
            "attend_rows",
            len(q) * kv_heads,
            _ATTENTION_THREADS,
            share * (2 * head_dim + TILE + 3) * 4,
            device.upload(q),
            device.upload(np.ascontiguousarray(kv.k[used])),
            device.upload(np.ascontiguousarray(kv.v[used])),
            device.upload(table),
            device.upload(kv.row_sequence),
            device.upload(kv.positions),
            device.upload(first_key.astype(np.int32)),
            out,
            np.uint32(heads),
            np.uint32(kv_heads),
            np.uint32(head_dim),
            np.uint32(page),
            np.uint32(kv.page_table.shape[-1]),
            np.float32(1 / np.sqrt(np.float64(head_dim))),
            np.int32(kv.k.dtype == np.uint16),
            np.int32(bf16),
        )
    return device.download(out, q.shape, dtype)
