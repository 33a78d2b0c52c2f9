"""How the message of a unary call is read: bounded by its size, on the call's own thread.

grpc reads messages on its one event thread, which also sends every stream's replies and answers health. protobuf holds
the interpreter's lock while it reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from colibri.errors import InvalidInput
from colibri.rpc.counts import Counts

#: Largest message of a method that says nothing else, bytes: fields of fixed size and names.
DEFAULT_BYTES = 64 << 10
#: Larger messages are read one at a time.
_LARGE_BYTES = 64 << 10
#: Whoever read for longer rests as long, so that other threads get the lock in between, seconds.
_LONG_S = 0.002

Deserializer = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Size:
    """What a method takes. most_bytes: of a message; counts: of elements, judged before protobuf makes them."""

    most_bytes: int = DEFAULT_BYTES
    counts: Counts | None = None


class Reading:
    """Of one server: its large messages are read one at a time. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._rest = rest
        self._large = threading.Lock()

    def message(self, data: bytes, read: Deserializer | None, size: Size) -> Any:
        """The message that the bytes are; they themselves where read is None.

        Raises InvalidInput for what is larger than `size`, and for bytes that are no message of the type.
        """
        if len(data) > size.most_bytes:
            raise InvalidInput("request", f"at most {size.most_bytes} bytes", f"{len(data)} bytes")
        if read is None:
            return data
        if len(data) <= _LARGE_BYTES:
            return _read(data, read)
        with self._large:
            begun = self._clock()
            try:
                if size.counts is not None:
                    size.counts.check(data)
                return _read(data, read)
            finally:
                took = self._clock() - begun
                if took > _LONG_S:
                    self._rest(took)


def _read(data: bytes, read: Deserializer) -> Any:
    try:
        return read(data)
    except Exception:
        kind = getattr(getattr(read, "__self__", None), "DESCRIPTOR", None)
        name = kind.full_name if kind is not None else "message of this call"
        raise InvalidInput("request", f"a {name}", f"{len(data)} bytes that are none") from None
