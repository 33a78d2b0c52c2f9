"""Philox4x32-10 against the known answers of Random123 (kat_vectors: philox4x32 10)."""

from __future__ import annotations

import pytest

from colibri.kernels.arithmetic.philox import philox4x32, uniform

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == expected


def test_uniform_takes_the_first_two_words() -> None:
    assert uniform(0, 0, 0) == ((0x6627E8D5 << 32 | 0xE169C58D) >> 11) * 2.0**-53


def test_uniform_is_spread() -> None:
    values = [uniform(7, 1, index) for index in range(4000)]
    assert all(0 <= v < 1 for v in values)
    assert abs(sum(values) / 4000 - 0.5) < 0.03
    assert len(set(values)) == 4000
