from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.cluster.machine.cpu_list import format_cpu_list, parse_cpu_list
from colibri.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("\n", ()),
        ("0\n", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("8,0-1,1\n", (0, 1, 8)),
        (" 4 , 6-7", (4, 6, 7)),
    ],
)
def test_reads_the_kernels_format(text: str, expected: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == expected


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "1-", "1-2-3", "0x1", "1;2", "99999999", "0-99999999"])
def test_refuses_anything_else_and_names_the_field(text: str) -> None:
    with pytest.raises(InvalidInput, match="node0/cpulist"):
        parse_cpu_list(text, "node0/cpulist")


@given(st.sets(st.integers(0, 300)))
def test_format_is_the_inverse(cpus: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))
