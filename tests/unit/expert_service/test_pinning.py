"""Pinning for real where this machine allows it, in processes of their own; the arithmetic by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from colibri.errors import ConfigError
from colibri.expert_service.pinning import (
    SAMPLED_PAGES,
    bind_memory,
    nodes_of_pages,
    pin_cpus,
    read_placement,
    sample_pages,
)

PAGE = os.sysconf("SC_PAGE_SIZE")


class Span:
    """A buffer at an address of one's choice."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.__array_interface__ = {"data": (address, False)}


def in_a_process(program: str) -> Any:
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_pinning_reaches_every_thread() -> None:
    cpu = max(os.sched_getaffinity(0))
    seen = in_a_process(
        "import json, os, threading\n"
        "from colibri.expert_service.pinning import pin_cpus, read_placement\n"
        "go, seen = threading.Event(), []\n"
        "def look():\n"
        "    go.wait(30)\n"
        "    seen.append(sorted(os.sched_getaffinity(0)))\n"
        "before = threading.Thread(target=look); before.start()\n"
        f"pin_cpus(({cpu},))\n"
        "after = threading.Thread(target=look); after.start()\n"
        "go.set(); before.join(); after.join()\n"
        "print(json.dumps([*seen, list(read_placement([]).cpus)]))\n"
    )
    assert seen == [[cpu]] * 3


def test_memory_is_bound_and_read_back() -> None:
    pages = in_a_process(
        "import json\n"
        "from colibri.expert_service.pinning import bind_memory, read_placement\n"
        "bind_memory(0)\n"
        "import numpy as np\n"
        "print(json.dumps(read_placement([np.ones(1 << 20, np.uint8)]).pages_by_node))\n"
    )
    assert set(pages) == {"0"}
    assert 1 <= pages["0"] <= SAMPLED_PAGES


def test_this_module_loads_nothing_heavy() -> None:
    heavy = in_a_process(
        "import json, sys\n"
        "import colibri.expert_service.worker\n"
        "print(json.dumps([name for name in ('numpy', 'grpc', 'google.protobuf') if name in sys.modules]))\n"
    )
    assert heavy == []


def test_cpus_that_do_not_exist() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ConfigError, match=r"cpus: expected CPUs of this machine, of \[.*\], got \[4095\]"):
        pin_cpus((4095,))
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("node", [1023, 1024, 1 << 20])
def test_nodes_that_do_not_exist(node: int) -> None:
    with pytest.raises(ConfigError, match=r"numa_node: expected"):
        bind_memory(node)


def test_nothing_asked_for_changes_nothing() -> None:
    before = os.sched_getaffinity(0)
    pin_cpus(())
    bind_memory(-1)
    assert os.sched_getaffinity(0) == before


def test_pages_not_in_memory_are_told_apart() -> None:
    fresh = np.empty(64 << 20, np.uint8)  # so large that it is mapped, not recycled
    fresh[0] = 1
    nodes = read_placement([fresh]).pages_by_node
    assert nodes.get(-1, 0) > 0
    assert nodes_of_pages([]) == {}


def test_a_small_buffer_is_sampled_page_by_page() -> None:
    assert sample_pages([Span(10 * PAGE, 3 * PAGE)], 100) == [10 * PAGE, 11 * PAGE, 12 * PAGE]
    assert sample_pages([], 100) == []
    assert sample_pages([Span(0, 0)], 100) == []


def test_a_sample_is_bounded_and_spread_over_all_buffers() -> None:
    spans = [Span(index << 30, 1000 * PAGE) for index in range(1, 9)]
    pages = sample_pages(spans, 80)
    assert 70 <= len(pages) <= 80
    assert all(page % PAGE == 0 for page in pages)
    per_span = [sum(page >> 30 == index for page in pages) for index in range(1, 9)]
    assert min(per_span) >= 8
    many = [Span(index << 30, PAGE) for index in range(1, 2001)]
    pages = sample_pages(many, 100)
    assert 90 <= len(pages) <= 100
    assert len({page >> 30 for page in pages}) == len(pages)
