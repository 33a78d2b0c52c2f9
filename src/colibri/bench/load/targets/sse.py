"""Server-sent events out of a byte stream (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Lines end at CR, LF or CRLF and at nothing else: JSON may hold U+2028 as it is, which str.splitlines, and
with it most HTTP clients, would cut.
"""

from __future__ import annotations

from colibri.errors import FrameError

#: A longer event is nonsense, or an attack.
MAX_EVENT_BYTES = 4 << 20


class SseDecoder:
    """Fed with pieces of a stream as they come; gives the data of each event that is complete. Names, ids and
    comments are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> list[str]:
        """Raises FrameError for data that is no UTF-8 and for an endless event."""
        *lines, self._rest = _lines(self._rest + piece)
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(_text(b"\n".join(self._data)))
                self._data, self._held = [], 0
            elif line.startswith(b"data:"):
                value = line[5:].removeprefix(b" ")
                self._data.append(value)
                self._held += len(value)
            elif line == b"data":
                self._data.append(b"")
        if self._held + len(self._rest) > MAX_EVENT_BYTES:
            raise FrameError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events


def _lines(raw: bytes) -> list[bytes]:
    """Without their ends; the last one is not complete. A CR at the very end may be half of a CRLF."""
    held = b"\r" if raw.endswith(b"\r") else b""
    lines = raw.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    lines[-1] += held
    return lines


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FrameError(f"an event that is no UTF-8: {error}") from None
