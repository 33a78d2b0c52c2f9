"""Every bad call and every bad frame against a real server and its workers: refused with just its line, and the next
good request is answered bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from colibri.v1 import router_pb2, router_pb2_grpc
from tests.integration.bad_input.frames import CASES as FRAMES
from tests.integration.bad_input.frames import FrameCase
from tests.integration.bad_input.live import WAIT_S, live
from tests.integration.bad_input.requests import GENERATION, HIDDEN, ROUTER, CallCase, forward
from tests.integration.bad_input.requests import workers_control as control_of
from tests.integration.bad_input.thrown import Targets, all_cases, targets, throw
from tests.support.growth import assert_flat

#: Their messages hold the real hashes; here only their ids are wanted.
CONTROL = tuple(case.id for case in control_of("", ""))
#: Repetitions of the whole table while memory is watched; the benchmark takes 200.
ROUNDS = 20
#: gRPC and the allocator keep what they once had; a leak of one message a round would be far more.
GROWTH_BYTES = 16 << 20


@pytest.fixture(scope="module")
def against(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    with live(tmp_path_factory.mktemp("live")) as server, targets(server) as found:
        yield found


@pytest.mark.parametrize("case", [*GENERATION, *ROUTER, *FRAMES], ids=lambda case: case.id)
def test_it_is_refused_and_the_next_good_request_is_answered(
    against: Targets, case: CallCase | FrameCase
) -> None:
    assert throw(against, case) == ""
    assert against.live.harm() == ""


@pytest.mark.parametrize("id", CONTROL)
def test_a_worker_refuses_bad_control_calls(against: Targets, id: str) -> None:
    (case,) = (case for case in against.control if case.id == id)
    assert throw(against, case) == ""
    assert against.live.harm() == ""


def test_ids_differ(against: Targets) -> None:
    cases = all_cases(against)
    assert len({case.id for case in cases}) == len(cases) > 140


def test_zero_rows_are_no_error(against: Targets) -> None:
    stub: router_pb2_grpc.RouterStub = router_pb2_grpc.RouterStub(against.live.channel)
    reply = stub.Forward(forward(rows=0, data=b""), timeout=WAIT_S)
    assert (reply.rows, reply.hidden, reply.data, list(reply.status)) == (0, HIDDEN, b"", [])
    gate = stub.Gate(router_pb2.GateRequest(layer=0, rows=0, hidden=HIDDEN), timeout=WAIT_S)
    assert (gate.rows, list(gate.expert)) == (0, [])


def test_a_row_that_is_not_finite_fails_alone(against: Targets) -> None:
    stub: router_pb2_grpc.RouterStub = router_pb2_grpc.RouterStub(against.live.channel)
    rows = np.random.default_rng().standard_normal((5, HIDDEN), dtype=np.float32)
    good = stub.Forward(forward(rows=5, data=rows.tobytes()), timeout=WAIT_S)
    assert list(good.status) == []
    for value in (np.nan, np.inf, -np.inf):
        bad = rows.copy()
        bad[1, 7] = bad[3, 0] = value
        reply = stub.Forward(forward(rows=5, data=bad.tobytes()), timeout=WAIT_S)
        assert list(reply.status) == [0, 1, 0, 1, 0]
        expected = np.frombuffer(good.data, np.float32).reshape(5, HIDDEN).copy()
        expected[[1, 3]] = 0
        assert np.array_equal(np.frombuffer(reply.data, np.float32).reshape(5, HIDDEN), expected)


def test_memory_stays(against: Targets) -> None:
    cases = all_cases(against)
    light = [case for case in cases if isinstance(case, FrameCase) or not case.heavy]
    heavy = [case for case in cases if isinstance(case, CallCase) and case.heavy]

    def rounds(count: int) -> list[str]:
        problems = [throw(against, case) for _ in range(count) for case in light]
        problems += [throw(against, case) for _ in range(count // 4) for case in heavy]
        return [problem for problem in problems if problem]

    def thrown() -> None:
        assert rounds(ROUNDS) == []

    thrown()  # what is warm afterwards
    assert_flat(thrown, against.live.resident, {"rss": GROWTH_BYTES})
    assert against.live.harm() == ""
