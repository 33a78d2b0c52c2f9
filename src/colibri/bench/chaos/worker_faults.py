"""The service Faults of all workers: which faults are in force where, and how often they have acted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc

from colibri.bench.chaos.plan import Action, EventSpec
from colibri.errors import ColibriError
from colibri.grpc_options import channel_options
from colibri.rpc.diagnose import failure
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.v1 import faults_pb2, faults_pb2_grpc
from colibri.v1 import operator_pb2 as pb

_TIMEOUT_S = 5.0

KINDS: Mapping[Action, faults_pb2.Fault.Kind.ValueType] = {
    Action.SLOW: faults_pb2.Fault.KIND_SLOW,
    Action.LATE: faults_pb2.Fault.KIND_LATE,
    Action.CORRUPT: faults_pb2.Fault.KIND_CORRUPT,
    Action.TRUNCATE: faults_pb2.Fault.KIND_TRUNCATE,
    Action.DUPLICATE: faults_pb2.Fault.KIND_DUPLICATE,
    Action.WRONG_SHAPE: faults_pb2.Fault.KIND_WRONG_SHAPE,
    Action.FULL_QUEUE: faults_pb2.Fault.KIND_BUSY,
    Action.REFUSE_LOAD: faults_pb2.Fault.KIND_REFUSE_LOAD,
}
_ACTIONS: Mapping[int, Action] = {int(number): action for action, number in KINDS.items()}

#: One life of a worker.
Life = tuple[str, int]


@dataclass(slots=True)
class _Worker:
    target: str
    rules: dict[int, faults_pb2.Fault] = field(default_factory=dict)
    before: Counter[Action] = field(default_factory=Counter)
    counted: Counter[Action] = field(default_factory=Counter)


class WorkerFaults:
    """Several faults of one worker may overlap: each is added and removed by its event's number. security: of the
    channels to the workers."""

    def __init__(self, security: ChannelSecurity = PLAIN) -> None:
        self._security = security
        self._lock = threading.Lock()
        self._workers: dict[Life, _Worker] = {}

    def add(self, worker: pb.WorkerInfo, number: int, spec: EventSpec, seed: int) -> None:
        """Raises ColibriError, for a worker without --allow-faults, too."""
        fault = faults_pb2.Fault(
            kind=KINDS[spec.action],
            probability=spec.probability,
            delay_us=round(spec.delay_s * 1e6),
            seed=seed,
        )
        with self._lock:
            life = (worker.name, worker.incarnation)
            state = self._workers.get(life)
            if state is None:
                state = _Worker(worker.target)
                state.before = state.counted = _set(state, life, self._security)  # by an earlier run, perhaps
                self._workers[life] = state
            state.rules[number] = fault
            state.counted = _set(state, life, self._security)

    def remove(self, worker: pb.WorkerInfo, number: int) -> None:
        """Raises ColibriError when that life of the worker does not answer any more: its faults ended with
        it."""
        with self._lock:
            life = (worker.name, worker.incarnation)
            state = self._workers[life]
            del state.rules[number]
            state.counted = _set(state, life, self._security)

    def clear(self) -> None:
        """Ends every fault that is still in force, and counts once more; dead workers are passed over."""
        with self._lock:
            for life, state in self._workers.items():
                state.rules.clear()
                try:
                    state.counted = _set(state, life, self._security)
                except ColibriError:
                    continue

    def injected(self) -> Mapping[Action, int]:
        """Faults that have acted, as last told; what a killed worker did after that is not known."""
        with self._lock:
            total: Counter[Action] = Counter()
            for state in self._workers.values():
                total += state.counted - state.before
            return dict(total)


def _set(state: _Worker, life: Life, security: ChannelSecurity) -> Counter[Action]:
    # Faults are for deployments of this machine, which have a secret. One behind mTLS says so.
    with security.open(state.target, channel_options()) as channel:
        stub: faults_pb2_grpc.FaultsStub = faults_pb2_grpc.FaultsStub(channel)
        request = faults_pb2.SetFaultsRequest(faults=list(state.rules.values()))
        try:
            reply = stub.SetFaults(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise failure(error, f"worker {life[0]}", state.target, security) from None
    return Counter({_ACTIONS[kind]: count for kind, count in reply.by_kind.items() if kind in _ACTIONS})
