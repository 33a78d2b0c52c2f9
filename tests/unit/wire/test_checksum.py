from __future__ import annotations

import numpy as np
import pytest

from colibri.wire.checksum import extend_lists, extend_tensor

#: RFC 3720, appendix B.4, and the check value of CRC catalogues.
VECTORS = [
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (b"", 0),
]


@pytest.mark.parametrize(("data", "crc"), VECTORS)
def test_known_values(data: bytes, crc: int) -> None:
    assert extend_tensor(0, data) == crc
    assert extend_tensor(0, memoryview(data)) == crc
    assert extend_tensor(0, memoryview(bytearray(data))) == crc


def test_lists_and_tensor_are_one_run_of_bytes() -> None:
    lists = [np.array([1, 2], np.uint32), np.array([], np.uint32), np.array([0.5], np.float32)]
    data = b"".join(array.tobytes() for array in lists) + b"tensor"
    assert extend_tensor(extend_lists(0, lists), b"tensor") == extend_tensor(0, data)


def test_a_view_into_the_middle() -> None:
    data = b"xx123456789yy"
    assert extend_tensor(0, memoryview(data)[2:-2]) == 0xE3069283
