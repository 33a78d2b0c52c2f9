"""What a cubin says of its kernels: registers, spilled bytes, static shared memory. The tools that print this are not
needed: a cubin is an ELF file.

Layout: ELF64 (System V ABI); attributes of `.nv.info` as `cuobjdump --dump-resource-usage` reads them, with which the
tests compare where it is installed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SVAL, _FRAME_SIZE, _REGISTERS = 4, 0x11, 0x2F


@dataclass(frozen=True, slots=True)
class Resources:
    """registers of a thread; stack: bytes of local memory of a thread, spills included; shared: static bytes."""

    registers: int
    stack: int
    shared: int


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """By kernel. Raises ValueError for what is no cubin."""
    if cubin[:4] != b"\x7fELF" or cubin[4] != 2:
        raise ValueError(f"cubin: expected ELF64, got {cubin[:5]!r}")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<2I4Q2I2Q", cubin, table + i * size) for i in range(count)]
    strings = sections[names_index]

    def text(section: tuple[int, ...], at: int) -> str:
        start = section[4] + at
        return cubin[start : cubin.index(b"\0", start)].decode()

    by_name = {text(strings, section[0]): section for section in sections}
    symbols = by_name[".symtab"]
    symbol_names = [
        text(sections[symbols[6]], struct.unpack_from("<I", cubin, symbols[4] + at)[0])
        for at in range(0, symbols[5], 24)
    ]
    found: dict[int, dict[str, int]] = {_FRAME_SIZE: {}, _REGISTERS: {}}
    info = by_name[".nv.info"]
    at, end = info[4], info[4] + info[5]
    while at < end:
        form, attribute, length = struct.unpack_from("<2BH", cubin, at)
        at += 4
        if form == _SVAL:
            if attribute in found:
                symbol, value = struct.unpack_from("<2I", cubin, at)
                found[attribute][symbol_names[symbol]] = value
            at += length
    out = {}
    for name in by_name:
        if name.startswith(".text."):
            kernel = name.removeprefix(".text.")
            shared = by_name.get(f".nv.shared.{kernel}")
            out[kernel] = Resources(
                found[_REGISTERS][kernel],
                found[_FRAME_SIZE].get(kernel, 0),
                0 if shared is None else shared[5],
            )
    return out
