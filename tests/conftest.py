"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from colibri.expert_service import cpu_locks
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from tests.support.scopes import turn

if TYPE_CHECKING:
    from tests.support.parallel import ByScope

#: Small enough for dozens of deployments, large enough that each of 3 workers holds experts of every layer.
TINY = RandomMixtral(
    hidden=64,
    ffn=96,
    layers=3,
    experts=8,
    top_k=2,
    heads=4,
    kv_heads=2,
    vocab=512,
    max_positions=1024,
    seed=11,
)
# A slow machine is no failure: timings are no assertions.
hypothesis.settings.register_profile("colibri", deadline=None)
hypothesis.settings.load_profile("colibri")
# Deployments of tests overlap, and so do test runs: they take no notice of one another's CPUs.
os.environ.setdefault(cpu_locks.VARIABLE, cpu_locks.NONE)
# Else each process that a test starts compiles the whole of Colibri anew, which takes longer than all else it does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Ray starts its processes by fork(), within which gRPC, if a test before used it, may wait for ever.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# A shell that runs the tests in its background has them ignore SIGINT, and so would every process that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
_FOLDER = pytest.StashKey[str]()
#: How long threads and processes may take to end after a module's last test.
_SETTLE_S = 10.0
#: Threads of fsspec, which serve all that is read over HTTP.
_FSSPECS = ("fsspecIO", "asyncio_")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Folders for tests with short names: sockets lie in them, and a socket's path has at most 107 bytes."""
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.option.basetemp = config.stash[_FOLDER] = tempfile.mkdtemp(prefix="ct-")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus != pytest.ExitCode.OK:
        session.config.stash[_FOLDER] = ""  # what failed may be looked at


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_FOLDER, "")
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByScope:
    from tests.support.parallel import ByScope

    return ByScope(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse ids that differ between processes that collect, as those of `make test` do; put the tests in order.

    Tests of the demo model are slow: it has 1.3 GB.
    """
    for item in items:
        if "demo_model" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addresses:
        raise pytest.UsageError(f"ids of tests: expected no addresses of objects, got {addresses[0]}")
    items.sort(key=lambda item: turn(item.nodeid))


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Folder of the demo model in the Colibri home; built (ten seconds or so) if it is not there."""
    return build_demo_model(colibri_home(os.environ))


@pytest.fixture(scope="session")
def tiny_mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Mixtral in bf16 with a tokenizer, made once."""
    return random_mixtral(tmp_path_factory.mktemp("tiny") / "mixtral", TINY)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test module leaves a child process or a thread. What lives for the whole session was there
    before."""
    children, threads = child_processes(), set(threading.enumerate())
    yield
    until = time.monotonic() + _SETTLE_S
    while (left := _left(children, threads)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, f"left behind: {left}"


def child_processes() -> dict[int, str]:
    """pid -> command line of this process's children, zombies included."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except (OSError, IndexError, ValueError):
                continue  # it has just ended
            if parent == os.getpid():
                found[int(folder.name)] = command
    return found


def _left(children: dict[int, str], threads: set[threading.Thread]) -> list[str]:
    processes = [f"pid {pid}: {command}" for pid, command in child_processes().items() if pid not in children]
    # grpc's own helper threads end when they please, fsspec's with the process.
    ours = [
        thread
        for thread in threading.enumerate()
        if thread not in threads and not _is_grpcs(thread) and not thread.name.startswith(_FSSPECS)
    ]
    return processes + [f"thread {thread.name}" for thread in ours]


def _is_grpcs(thread: threading.Thread) -> bool:
    # Not started by Python: one of grpc's own that has called Python once.
    if isinstance(thread, threading._DummyThread):
        return True
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", "").startswith("grpc")
