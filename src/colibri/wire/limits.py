"""What frames of one deployment may hold, computed from the model: the same on both ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from colibri.errors import ConfigError
from colibri.v1 import expert_pb2

#: Largest tensor piece of one frame: small messages never wait behind more than this.
CHUNK_BYTES = 1 << 20
#: Rows of one message unless configured otherwise.
DEFAULT_MAX_ROWS = 1024
#: Error messages are cut to this many characters before they travel.
MAX_ERROR_CHARS = 1000
#: The header's scalars, tags, trace id and error message (at most 4 bytes a character), generously.
_FIXED_BYTES = 8192
_RESULT_ITEM = 4

_COMPUTE_MODES = {
    "fp32": (expert_pb2.COMPUTE_MODE_FP32, expert_pb2.DTYPE_FP32, 4),
    "bf16": (expert_pb2.COMPUTE_MODE_BF16, expert_pb2.DTYPE_BF16, 2),
}


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The shapes of one model, as the data plane sees them. Raises ConfigError for a value out of range.

    compute_mode: 'fp32' or 'bf16', also the rows' dtype on the wire.
    max_rows: rows of one message.

    These follow: mode_number and dtype_number (of colibri.v1.ComputeMode and Dtype, in every request), row_bytes
    (one row of a request), result_row_bytes (one unit of a reply).
    """

    layers: int
    experts: int
    top_k: int
    hidden: int
    compute_mode: str
    max_rows: int = DEFAULT_MAX_ROWS
    mode_number: int = field(init=False, repr=False)
    dtype_number: int = field(init=False, repr=False)
    row_bytes: int = field(init=False, repr=False)
    result_row_bytes: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("layers", "experts", "top_k", "hidden", "max_rows"):
            value = getattr(self, name)
            if not 1 <= value < 1 << 24:
                raise ConfigError(name, "1 to 2^24 - 1", value)
        if self.compute_mode not in _COMPUTE_MODES:
            raise ConfigError("compute_mode", " or ".join(_COMPUTE_MODES), self.compute_mode)
        mode, dtype, itemsize = _COMPUTE_MODES[self.compute_mode]
        object.__setattr__(self, "mode_number", int(mode))
        object.__setattr__(self, "dtype_number", int(dtype))
        object.__setattr__(self, "row_bytes", self.hidden * itemsize)
        object.__setattr__(self, "result_row_bytes", self.hidden * _RESULT_ITEM)

    @property
    def max_entries(self) -> int:
        """Most entries, and so units, of one message."""
        return self.max_rows * self.top_k

    @property
    def max_request_bytes(self) -> int:
        """Tensor bytes of the largest request."""
        return self.max_rows * self.row_bytes

    @property
    def max_reply_bytes(self) -> int:
        """Tensor bytes of the largest reply."""
        return self.max_entries * self.result_row_bytes

    @property
    def max_frame_bytes(self) -> int:
        """Bytes of the largest frame, which is a message's first with all its lists: the limit of a gRPC message."""
        groups = min(self.experts, self.max_entries)
        lists = 4 * (2 * groups + 4 * self.max_entries + 2 * self.max_entries)
        return CHUNK_BYTES + lists + _FIXED_BYTES
