"""Hostile peers of shared memory: the worker whose ring they hold lives on, computes right, keeps nothing of them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import grpc
import numpy as np
import pytest

from colibri.cluster.workers.expert_calls import load_experts
from colibri.deadline import Deadline
from colibri.errors import Unauthenticated
from colibri.kernels.api import ComputeMode
from colibri.placement import Directory, Membership, WorkerEndpoint
from colibri.rpc.status import from_rpc_error
from colibri.security.channel import ChannelSecurity
from colibri.security.plane_secret import PlaneSecret, kept_secret
from colibri.transport.link import LinkKind
from colibri.wire.chunks import message_frames
from tests.attacks.ring_fuzz import attached, spoil
from tests.support.clusters import eventually
from tests.support.expert_servers import MoeBench
from tests.support.frames import forward
from tests.support.tries import Tries
from tests.support.worker_client import WAIT_S, WorkerProcess, worker_process


def attack(model: Path, folder: Path, links: int, seed: int) -> int:
    """Tries. A real worker, beside a router whose bits must stay right."""
    draw = random.Random(seed)
    bench = MoeBench(model, ComputeMode.FP32, folder)
    secret = folder / "secret"
    shown = ChannelSecurity(secret=kept_secret(secret, "--worker-secret-file"))
    flags = (f"--worker-secret-file={secret}", "--backend=reference")
    x = bench.rows(np.random.default_rng(3), 5)
    expected = bench.local().forward(1, x).rows
    frames = [
        b"".join(
            b"".join(parts) for parts in message_frames(header, bytes(header.rows * bench.limits.row_bytes))
        )
        for header in (forward(bench.limits, number, rows) for number, rows in ((1, 1), (2, 7)))
    ]
    tries = 0
    with worker_process(model, "127.0.0.1:0", *flags) as worker:
        endpoint = WorkerEndpoint("w0", 7, worker.target, shown)
        load(endpoint, bench)
        directory = Directory(Membership(bench.spread(1), {"w0": endpoint}))
        with bench.remote(directory, link=LinkKind.SHARED_MEMORY) as (router, executor):
            assert not executor.connect()
            before = descriptors(worker)
            for _ in range(links):
                with attached(worker.target, shown) as (memory, call):
                    for _ in range(draw.randrange(1, 12)):
                        spoil(memory, draw, frames)
                        tries += 1
                        if not call.is_active():
                            break
                assert worker.process.poll() is None, "the worker died"
                if draw.random() < 0.2:
                    assert np.array_equal(router.forward(1, x).rows, expected)
            assert np.array_equal(router.forward(1, x).rows, expected)
            eventually(lambda: descriptors(worker) <= before, WAIT_S, "the rings are gone")
    return tries


def load(endpoint: WorkerEndpoint, bench: MoeBench) -> None:
    load_experts(endpoint, bench.keys, 1, Deadline.after(60.0), lambda step: None)


def descriptors(worker: WorkerProcess) -> int:
    folder = Path(f"/proc/{worker.pid}/fd")
    return sum("colibri-ring" in os.readlink(path) for path in folder.iterdir() if path.is_symlink())


def test_a_ring_in_hostile_hands(tiny_mixtral: Path, tmp_path: Path, tries: Tries) -> None:
    tries("hostile writes into a ring", attack(tiny_mixtral, tmp_path, 40, 1))


@pytest.mark.attacks
def test_many_rings_in_hostile_hands(tiny_mixtral: Path, tmp_path: Path, tries: Tries) -> None:
    tries("hostile writes into a ring", attack(tiny_mixtral, tmp_path, 2000, 2))


def test_no_ring_without_the_secret(tiny_mixtral: Path, tmp_path: Path, tries: Tries) -> None:
    """Attach is refused, so that there is no memory to guess the token of."""
    secret = tmp_path / "secret"
    kept_secret(secret, "--worker-secret-file")
    with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock", f"--worker-secret-file={secret}") as worker:
        for guess in [PlaneSecret.draw() for _ in range(20)]:
            with (
                pytest.raises(grpc.RpcError) as caught,
                attached(worker.target, ChannelSecurity(secret=guess)),
            ):
                pass
            assert isinstance(from_rpc_error(caught.value, "w0"), Unauthenticated)
        assert descriptors(worker) == 0
    tries("rings without the secret", 20)
