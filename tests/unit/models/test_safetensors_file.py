"""The reader against files by the reference library, and against headers that lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from colibri.errors import CheckpointError
from colibri.models.safetensors_file import MAX_HEADER_BYTES, SafetensorsFile

DATA = bytes(range(48))


def write(path: Path, header: object, data: bytes = DATA, *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(begin: int, end: int, shape: list[Any], dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = {"a": entry(0, 24, [2, 3]), "b": entry(24, 48, [3, 4], "BF16")}


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    arrays: dict[str, np.ndarray] = {
        "x": rng.normal(size=(3, 5)).astype(np.float32),
        "y": rng.normal(size=(7,)).astype(np.float16),
        "scalar": np.array(3.5, np.float32),
        "none": np.empty((0, 4), np.float32),
    }
    save_file(arrays, tmp_path / "f.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "f.safetensors")
    assert file.metadata == {"format": "pt"}
    assert set(file.tensors) == set(arrays)
    for name, array in arrays.items():
        read = file.array(name)
        assert read.dtype == array.dtype
        assert read.shape == array.shape
        assert np.array_equal(read, array)
        assert not read.flags.writeable or read.size == 0


def test_bf16_is_bit_patterns_without_a_copy(tmp_path: Path) -> None:
    path = write(tmp_path / "f", json.dumps(GOOD).encode().ljust(160))
    file = SafetensorsFile(path)
    assert file.tensors["b"].shape == (3, 4)
    assert np.array_equal(file.array("b"), np.frombuffer(DATA[24:], "<u2").reshape(3, 4))
    assert file.array("b").base is not None


@pytest.mark.parametrize("pad", range(8))
def test_unaligned_data_is_aligned_by_copy(tmp_path: Path, pad: int) -> None:
    text = json.dumps(GOOD).encode()
    read = SafetensorsFile(write(tmp_path / "f", text + b" " * pad)).array("a")
    assert read.flags.aligned
    assert not read.flags.writeable
    assert read.tobytes() == DATA[:24]


HUGE = 1 << 40

LIES = {
    "an overlap": {"a": entry(0, 24, [2, 3]), "b": entry(20, 48, [7])},
    "two tensors in one place": {"a": entry(0, 48, [12]), "b": entry(0, 48, [12])},
    "a hole": {"a": entry(0, 20, [5]), "b": entry(24, 48, [6])},
    "a hole at the start": {"b": entry(24, 48, [6])},
    "data behind the last tensor": {"a": entry(0, 24, [6])},
    "a tensor beyond the file": {"a": entry(0, 24, [6]), "b": entry(24, 52, [7])},
    "offsets backwards": {"a": entry(48, 0, [12])},
    "negative offsets": {"a": entry(-48, 0, [12])},
    "a shape that is too large": {"a": entry(0, 48, [13])},
    "a product beyond 64 bits": {"a": entry(0, 48, [HUGE, HUGE])},
    "a product that wraps to the right size": {"a": entry(0, 48, [12, (1 << 64) + 1])},
    "a negative size": {"a": entry(0, 48, [-12])},
    "two negative sizes": {"a": entry(0, 48, [-3, -4])},
    "a fractional size": {"a": entry(0, 48, [12.0])},
    "a boolean size": {"a": entry(0, 48, [True, 12])},
    "a text size": {"a": entry(0, 48, ["12"])},
    "too many dimensions": {"a": entry(0, 48, [1] * 9 + [12])},
    "an unknown dtype": {"a": entry(0, 48, [12], "Q4")},
    "a dtype that is no text": {"a": entry(0, 48, [12], 7)},
    "three offsets": {"a": {"dtype": "F32", "shape": [12], "data_offsets": [0, 48, 48]}},
    "no offsets": {"a": {"dtype": "F32", "shape": [12]}},
    "an unknown key": {"a": {**entry(0, 48, [12]), "x": 1}},
    "an entry that is no object": {"a": [0, 48]},
    "metadata that is no object": {"__metadata__": 3, "a": entry(0, 48, [12])},
    "metadata that is no text": {"__metadata__": {"x": 3}, "a": entry(0, 48, [12])},
    "half a byte": {"a": entry(0, 48, [95], "F4")},
    "a list": [],
    "no JSON": b'{"a": ',
    "NaN": b'{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 48]}}',
    "no UTF-8": b'{"\xff": 1}',
    "a double name": b'{"a":%(e)s,"a":%(e)s}' % {b"e": json.dumps(entry(0, 48, [12])).encode()},
    "deep nesting": b"[" * 100_000,
    "an endless number": b'{"a": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_lying_header_is_refused(tmp_path: Path, lie: object) -> None:
    path = write(tmp_path / "f", lie)
    with pytest.raises(CheckpointError, match=str(path)):
        SafetensorsFile(path)


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 1 << 63, (1 << 64) - 1, 1000])
def test_header_length_is_checked_before_reading(tmp_path: Path, length: int) -> None:
    with pytest.raises(CheckpointError, match="header length"):
        SafetensorsFile(write(tmp_path / "f", GOOD, length=length))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "f", GOOD).read_bytes()
    cut = tmp_path / "cut"
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="cut"):
            SafetensorsFile(cut)


def test_other_dtypes_are_listed_and_refused_on_access(tmp_path: Path) -> None:
    file = SafetensorsFile(write(tmp_path / "f", {"a": entry(0, 48, [48], "F8_E4M3")}))
    assert file.tensors["a"].dtype == "F8_E4M3"
    with pytest.raises(CheckpointError, match=r"a: dtype: expected one of BF16, F16, F32, got F8_E4M3"):
        file.array("a")
    with pytest.raises(CheckpointError, match="b: expected a tensor, got none of that name"):
        file.array("b")


def test_missing_file_folder_and_later_change(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a"):
        SafetensorsFile(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="expected a"):
        SafetensorsFile(tmp_path)
    file = SafetensorsFile(write(tmp_path / "f", GOOD))
    (tmp_path / "f").write_bytes(b"short")
    with pytest.raises(
        CheckpointError, match=r"file size: expected .* bytes, as when its header was read, got 5"
    ):
        file.array("a")


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-8, 64), st.sampled_from([HUGE, 1 << 63, 1 << 64, 2.5, True, None, "F32", [], {}])
)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.dictionaries(
        st.sampled_from(["a", "b", "c", "__metadata__"]),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "F16", "BF16", "U8", "F64"]),
                "shape": st.lists(st.integers(0, 12) | VALUES, max_size=3),
                "data_offsets": st.lists(
                    st.sampled_from([0, 8, 16, 24, 48]) | VALUES, min_size=2, max_size=2
                ),
            }
        ),
        max_size=3,
    )
)
@example(header=GOOD)
@example(header={"a": entry(0, 48, [2, 6]), "b": entry(48, 48, [0])})
def test_what_is_accepted_is_safe_and_accepted_by_the_library(
    tmp_path: Path, header: dict[str, object]
) -> None:
    path = write(tmp_path / "f", header)
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    with safetensors.safe_open(path, "np") as reference:
        assert set(reference.keys()) == set(file.tensors)
    assert sum(info.nbytes for info in file.tensors.values()) == len(DATA)
    for name, info in file.tensors.items():
        if info.dtype in ("F32", "F16", "BF16"):
            assert file.array(name).tobytes() == path.read_bytes()[info.begin : info.end]
