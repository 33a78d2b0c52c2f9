"""Shake hands with a worker: both must speak the same protocol and would compute the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc

from colibri.errors import ColibriError, DeadlineExpired, NumericsMismatch, WorkerLost
from colibri.numerics_homes import OPTION
from colibri.placement import WorkerEndpoint
from colibri.rpc.diagnose import explained, may_be_tls
from colibri.rpc.status import from_rpc_error
from colibri.v1 import expert_pb2, expert_pb2_grpc
from colibri.wire.protocol import PROTOCOL_MAX, PROTOCOL_MIN

#: How long may be looked for what TLS has against a connection, seconds.
_TLS_PROBE_S = 0.5


@dataclass(frozen=True, slots=True)
class RouterIdentity:
    """What a router shows its workers.

    pack_hash: empty if weights come from the checkpoint itself.
    others: worker name -> its expert_numerics_id, where that differs (colibri.numerics_homes).
    """

    router_name: str
    model_hash: str
    expert_numerics_id: str
    pack_hash: str = ""
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    others: Mapping[str, str] = field(default_factory=dict)

    def numerics_of(self, worker: str) -> str:
        return self.others.get(worker, self.expert_numerics_id)


def shake_hands(
    channel: grpc.Channel, endpoint: WorkerEndpoint, identity: RouterIdentity, timeout_s: float
) -> expert_pb2.HandshakeReply:
    """Asks the worker who it is and compares.

    Raises NumericsMismatch, naming both values, if anything that decides bits or framing differs. Raises WorkerLost
    if the worker cannot be reached, does not answer within `timeout_s`, or is not the worker and incarnation of
    `endpoint`. Else raises the worker's own typed error.
    """
    name = endpoint.name
    numerics = identity.numerics_of(name)
    request = expert_pb2.HandshakeRequest(
        protocol_min=identity.protocol_min,
        protocol_max=identity.protocol_max,
        model_hash=identity.model_hash,
        pack_hash=identity.pack_hash,
        expert_numerics_id=numerics,
        router_name=identity.router_name,
    )
    try:
        reply = expert_pb2_grpc.ExpertStub(channel).Handshake(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise _handshake_error(error, endpoint, timeout_s) from None
    if (reply.worker, reply.incarnation) != (name, endpoint.incarnation):
        expected = f"{name}, incarnation {endpoint.incarnation}, at {endpoint.target}"
        got = f"{reply.worker}, incarnation {reply.incarnation}"
        raise WorkerLost(f"{name}: expected {expected}, got {got}", peer=name)
    for what, expected, got in (
        ("model_hash", identity.model_hash, reply.model_hash),
        ("pack_hash", identity.pack_hash, reply.pack_hash),
        ("expert_numerics_id", numerics, reply.expert_numerics_id),
    ):
        if expected != got:
            text = f"{name}: {what}: expected {expected!r} (router), got {got!r} (worker)"
            if what == "expert_numerics_id":
                text += f"; only with {OPTION} of the router do such workers serve together"
            raise NumericsMismatch(text, peer=name)
    if not identity.protocol_min <= reply.protocol <= identity.protocol_max:
        spoken = f"{identity.protocol_min} to {identity.protocol_max} (router)"
        text = f"{name}: protocol: expected {spoken}, got {reply.protocol} (worker)"
        raise NumericsMismatch(text, peer=name)
    return reply


def _handshake_error(error: grpc.RpcError, endpoint: WorkerEndpoint, timeout_s: float) -> ColibriError:
    typed = from_rpc_error(error, endpoint.name)
    if endpoint.security.tls_ca is not None and may_be_tls(error):
        typed = explained(typed, endpoint.target, endpoint.security, _TLS_PROBE_S)
    if isinstance(typed, DeadlineExpired):
        # The bound is this router's own, so the caller may try again, elsewhere.
        text = f"{endpoint.name}: no handshake with {endpoint.target} within {timeout_s:g} s"
        return WorkerLost(text, peer=endpoint.name)
    return typed
