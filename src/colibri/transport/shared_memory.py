"""A link between two processes on one host: frames travel through shared memory, and gRPC's Attach call holds the
link.

A hop is then a copy and a look at one word instead of four thread hand-overs. A waiting thread yields its core for
a moment and then sleeps, so it does no harm if there are more processes than cores. The memory is a nameless
descriptor of the worker's, so nothing is left behind, however the two end. When a peer dies the Attach call ends;
that closes the rings and wakes whoever waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import grpc

from colibri.errors import Cancelled, DeadlineExpired, WorkerLost
from colibri.rpc.status import from_rpc_error
from colibri.transport._shared_ring import SharedRing
from colibri.transport.link import SEND_TIMEOUT_S, LinkKind
from colibri.v1 import expert_pb2, expert_pb2_grpc

#: Version of the memory's layout (ring_memory.cpp).
LAYOUT = 1
TOKEN_BYTES = 16
#: How long a waiting side yields before it sleeps: about what waking a sleeping core costs.
SPIN_S = 50e-6
#: 1 MiB: small frames go round in what a core caches.
MIN_RING_BITS = 20
#: How long the reason of an end is waited for.
_REASON_S = 1.0


def ring_bytes(max_frame_bytes: int) -> int:
    """Returns the size of each ring: two of the largest frames, so that one can be written while another is read."""
    return 1 << max(MIN_RING_BITS, (2 * max_frame_bytes).bit_length())


class SharedMemoryLink:
    """A Link (colibri.transport.link) to a worker of this host, over an open channel, which the caller still has to
    close.
    """

    def __init__(self, channel: grpc.Channel, peer: str, host: str, timeout_s: float) -> None:
        """Raises WorkerLost, or the worker's typed error, if it cannot be attached within `timeout_s` seconds."""
        self._peer = peer
        self._lost: str | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._ring: SharedRing | None = None
        request = expert_pb2.AttachRequest(host=host, layout=LAYOUT)
        # Without a deadline: the call lasts as long as the link. What bounds the first reply is the timer.
        self._call = expert_pb2_grpc.ExpertStub(channel).Attach(request)
        timer = threading.Timer(timeout_s, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            offer = next(self._call)
            self._ring = SharedRing.open(f"/proc/{offer.pid}/fd/{offer.fd}", offer.token)
        except grpc.RpcError as error:
            cause = from_rpc_error(error, peer)
            if isinstance(cause, Cancelled):
                cause = WorkerLost(f"{peer}: not attached within {timeout_s:g} s", peer=peer)
            raise cause from None
        except BaseException as error:
            self._call.cancel()
            if isinstance(error, RuntimeError | StopIteration):
                text = str(error) or "the worker offered nothing"
                raise WorkerLost(f"{peer}: cannot attach: {text}", peer=peer) from None
            raise
        finally:
            timer.cancel()
        if not self._call.add_callback(self._ended):
            self._ended()

    @property
    def kind(self) -> LinkKind:
        return LinkKind.SHARED_MEMORY

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def lost(self) -> str | None:
        return self._lost

    def send(self, parts: Sequence[bytes | memoryview], timeout_s: float = SEND_TIMEOUT_S) -> None:
        """See Link.send. The parts are copied before the call returns."""
        try:
            if self._attached().write(parts, max(0.0, timeout_s)):
                return
        except ValueError as error:
            self._lose(f"{self._peer}: stream lost: RESOURCE_EXHAUSTED: {error}")
            raise self._error() from None
        except ConnectionError:
            raise self._error() from None
        except RuntimeError as error:
            self._lose(f"{self._peer}: {error}")
            raise self._error() from None
        raise DeadlineExpired(f"{self._peer}: did not take a frame within {timeout_s:g} s", peer=self._peer)

    def receive(self, timeout_s: float) -> memoryview:
        try:
            frame = self._attached().read(max(0.0, timeout_s), SPIN_S)
        except ConnectionError:
            raise self._error() from None
        except RuntimeError as error:
            self._lose(f"{self._peer}: {error}")
            raise self._error() from None
        if frame is None:
            raise DeadlineExpired(f"{self._peer}: no frame within {timeout_s:g} s", peer=self._peer)
        return memoryview(frame)

    def close(self) -> None:
        self._lose(f"{self._peer}: link closed")
        # Whoever still reads or writes holds the memory until it has noticed.
        self._ring = None
        self._call.cancel()

    def _attached(self) -> SharedRing:
        ring = self._ring
        if ring is None:
            raise WorkerLost(self._lost or f"{self._peer}: not attached", peer=self._peer)
        return ring

    def _error(self) -> WorkerLost:
        # The rings may say a moment before the call does that it is over, but only the call says why.
        self._over.wait(_REASON_S)
        return WorkerLost(self._lost or f"{self._peer}: the worker ended the stream", peer=self._peer)

    def _ended(self) -> None:
        # On a thread of grpc, when the call is over for whatever reason.
        code, details = self._call.code(), self._call.details()
        if code is grpc.StatusCode.OK:
            self._lose(f"{self._peer}: the worker ended the stream")
        else:
            self._lose(f"{self._peer}: stream lost: {code.name if code else 'UNKNOWN'}: {details}")

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._lost is None:
                self._lost = reason
        self._over.set()
        ring = self._ring
        if ring is not None:
            ring.close()
