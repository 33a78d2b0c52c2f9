from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.wire.header import Header

class Codec:
    def __init__(
        self,
        header: Callable[..., Header],
        fields: Sequence[tuple[str, str, object]],
        extend: Callable[[int, Any], int],
        extend_tensor: Callable[[int, Any], int],
        frombuffer: Callable[[bytes, np.dtype[Any]], NDArray[Any]],
        u32: np.dtype[np.uint32],
        f32: np.dtype[np.float32],
    ) -> None: ...
    def scan(self, frame: bytes) -> tuple[Header, int, int] | None: ...
    def prefix(self, header: Header, tensor: bytes | memoryview) -> bytes: ...
