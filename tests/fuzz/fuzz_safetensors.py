"""Coverage-guided fuzzing of the safetensors reader: `python -m tests.fuzz.fuzz_safetensors
tests/fuzz/corpus/safetensors`.

An input is a whole file. It must be refused with a precise CheckpointError, or be a file that the reference library
opens too, whose tensors fill it without overlap or hole and read as the very bytes of it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import atheris
import safetensors

from colibri.errors import CheckpointError
from colibri.models import json_file, safetensors_file
from colibri.models.dtypes import BY_SAFETENSORS
from colibri.models.safetensors_file import SafetensorsFile
from tests.fuzz.instrument import instrument

#: In memory: a fuzzer writes thousands of files a second.
_FILE = os.memfd_create("fuzz", os.MFD_CLOEXEC)
PATH = Path(f"/proc/self/fd/{_FILE}")


def one_input(data: bytes) -> None:
    os.ftruncate(_FILE, 0)
    os.pwrite(_FILE, data, 0)
    try:
        file = SafetensorsFile(PATH)
    except CheckpointError as error:
        text = error.message
        if not text.startswith(str(PATH)) or ": expected " not in text or ", got " not in text:
            raise AssertionError(f"not precise: {text}") from error
        return
    with safetensors.safe_open(PATH, "np") as reference:
        if set(reference.keys()) != set(file.tensors):
            raise AssertionError("expected the tensors of the reference library")
    at = file.data_start
    for info in sorted(file.tensors.values(), key=lambda info: (info.begin, info.end)):
        if info.begin != at:
            raise AssertionError(f"{info.name} begins at {info.begin}, expected {at}")
        at = info.end
        if info.dtype in BY_SAFETENSORS and file.array(info.name).tobytes() != data[info.begin : info.end]:
            raise AssertionError(f"{info.name} reads other bytes than it has")
    if at != len(data):
        raise AssertionError("the tensors do not fill the file")


if __name__ == "__main__":
    instrument(json_file, safetensors_file)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
