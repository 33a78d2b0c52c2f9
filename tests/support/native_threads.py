"""Native code under many threads of Python's: kernels and their pool, rings between two processes, the wire codec.

Each returns how many calls were made and found right. Run with the thread sanitiser by `make sanitize MODE=thread`.
"""

from __future__ import annotations

import os
import queue
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from colibri.kernels.api import ComputeMode
from colibri.kernels.cpu.backend import CpuBackend
from colibri.transport._shared_ring import SharedRing
from colibri.wire.frame import read_frame, verify, write_frame
from colibri.wire.limits import FrameLimits
from tests.support.frames import forward

#: For what is under way when the time is over, seconds.
_END_S = 60.0
_WRITERS = 3
_RING = 1 << 14


def together(seconds: float, works: Sequence[Callable[[], int]]) -> int:
    """Calls each of `works` again and again on a thread of its own, and sums what they return. Raises the first error
    of any, and TimeoutError where one does not end."""
    until, failed, done = time.monotonic() + seconds, queue.SimpleQueue[BaseException](), [0] * len(works)

    def repeat(index: int) -> None:
        try:
            while time.monotonic() < until and failed.empty():
                done[index] += works[index]()
        except BaseException as error:
            failed.put(error)

    threads = [threading.Thread(target=repeat, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()) + _END_S)
    if not failed.empty():
        raise failed.get()
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"threads: expected all to end within {_END_S:g} s after their time")
    return sum(done)


def kernels(seconds: float) -> int:
    """One backend that all share, others that come and go, memory made on one thread and freed on another."""
    rng = np.random.default_rng(secrets.randbits(64))
    shared = CpuBackend(3)
    weight = rng.standard_normal((320, 256)).astype(np.float32)
    packed = shared.pack_linear(weight, ComputeMode.FP32)
    large = rng.integers(0, 256, 1 << 20, dtype=np.uint8)
    scale = rng.standard_normal(256).astype(np.float32)

    def calls(rows: int) -> Callable[[], int]:
        x = rng.standard_normal((rows, 256)).astype(np.float32)
        alone = CpuBackend(1)
        answers = (
            alone.linear(x, packed).tobytes(),
            alone.rms_norm(x, scale, 1e-5, ComputeMode.FP32).tobytes(),
            alone.log_sum_exp(x).tobytes(),
            alone.read_pass(large),
        )
        alone.close()

        def call() -> int:
            got = (
                shared.linear(x, packed).tobytes(),
                shared.rms_norm(x, scale, 1e-5, ComputeMode.FP32).tobytes(),
                shared.log_sum_exp(x).tobytes(),
                shared.read_pass(large),
            )
            if got != answers:
                raise AssertionError(f"{rows} rows: other results on many threads than on one")
            return len(got)

        return call

    made = queue.Queue[object](4)

    def come_and_go() -> int:
        backend = CpuBackend(2)
        again = backend.pack_linear(weight, ComputeMode.FP32)
        if again.data.tobytes() != packed.data.tobytes() or backend.read_pass(large) != shared.read_pass(
            large
        ):
            raise AssertionError("a backend that has just been made gives other results")
        try:
            made.put_nowait(again)
        except queue.Full:
            made.get_nowait()
        backend.close()
        return 3

    def drop() -> int:
        try:
            made.get(timeout=0.01)
        except queue.Empty:
            return 0
        return 1

    try:
        return together(seconds, [calls(1), calls(7), calls(90), come_and_go, drop])
    finally:
        shared.close()


def codec(seconds: float) -> int:
    """The same headers and frames, written and read on four threads."""
    limits = FrameLimits(layers=4, experts=8, top_k=2, hidden=64, compute_mode="fp32")
    rows = (1, 3, 40)
    headers = [forward(limits, number, count) for number, count in enumerate(rows)]
    tensors = [random.Random(count).randbytes(count * limits.row_bytes) for count in rows]
    frames = [
        b"".join(bytes(part) for part in write_frame(header, tensor))
        for header, tensor in zip(headers, tensors, strict=True)
    ]
    draws = random.Random()

    def call() -> int:
        for header, tensor, frame in zip(headers, tensors, frames, strict=True):
            if b"".join(bytes(part) for part in write_frame(header, tensor)) != frame:
                raise AssertionError("a frame written on many threads differs")
            read = read_frame(frame)
            verify(read)
            if bytes(read.tensor) != tensor or read.header.entry_row.tobytes() != header.entry_row.tobytes():
                raise AssertionError("a frame read on many threads differs")
        cut = frames[2][: draws.randrange(len(frames[2]))]
        try:
            read_frame(cut)
        except Exception as error:
            if type(error).__name__ != "FrameError":
                raise
        return 2 * len(frames) + 1

    return together(seconds, [call] * 4)


#: The other process: what one thread reads, several write back.
_ECHO = """
import queue, sys, threading
from colibri.transport._shared_ring import SharedRing
ring = SharedRing.open(sys.argv[1], bytes.fromhex(sys.argv[2]))
waiting = queue.Queue(64)
def write():
    try:
        while (record := waiting.get()) is not None:
            while not ring.write((record[:5], record[5:]), 0.05):
                pass
    except ConnectionError:
        pass
writers = [threading.Thread(target=write) for _ in range(int(sys.argv[3]))]
for writer in writers: writer.start()
print("open", flush=True)
try:
    while True:
        record = ring.read(1.0, 5e-5)
        if record is not None:
            waiting.put(record)
except ConnectionError:
    pass
for writer in writers: waiting.put(None)
for writer in writers: writer.join()
"""


def rings(seconds: float) -> int:
    """Several writers of two processes, a reader in each, and threads that ask, wake and at last close."""
    token = secrets.token_bytes(16)
    ring = SharedRing.create(_RING, token)
    path = f"/proc/{os.getpid()}/fd/{ring.fd}"
    command = [sys.executable, "-c", _ECHO, path, token.hex(), str(_WRITERS)]
    echo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert echo.stdout is not None
    counts, lock = [0] * _WRITERS, threading.Lock()
    wanted: set[bytes] = set()

    def writer(index: int) -> Callable[[], int]:
        draws = random.Random(index)

        def write() -> int:
            record = b"%d %d " % (index, counts[index]) + draws.randbytes(draws.choice((0, 1, 9, 3000)))
            counts[index] += 1
            with lock:
                wanted.add(record)
            while not ring.write((record[:7], memoryview(record)[7:]), 0.05):
                pass
            return 1

        return write

    def read() -> int:
        record = ring.read(0.05, 5e-5)
        if record is None:
            return 0
        with lock:
            wanted.remove(record)  # raises for one that was not sent, or came twice
        return 1

    def ask() -> int:
        ring.wake()
        if ring.closed:
            raise AssertionError("closed, before anybody closed it")
        _ = ring.ready
        time.sleep(0.001)
        return 1

    try:
        assert echo.stdout.readline() == "open\n"
        done = together(seconds, [*(writer(index) for index in range(_WRITERS)), read, ask])
        until = time.monotonic() + _END_S
        while wanted and time.monotonic() < until:
            done += read()
        if wanted:
            raise AssertionError(f"{len(wanted)} records were sent and never came back")
        ring.close()
        if echo.wait(_END_S):
            raise AssertionError(f"the other process ended with {echo.returncode}")
        return done
    finally:
        ring.close()
        echo.kill()
        echo.wait(_END_S)
        echo.stdout.close()
