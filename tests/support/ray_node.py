"""One Ray node on this machine, of this test process: its processes are children, and gone when it ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.cluster.ray.options import RESOURCE
from colibri.cluster.ray.session import NAMESPACE, api


@contextlib.contextmanager
def ray_node(seats: int) -> Iterator[None]:
    """With a token of its own, whatever this user has; seats: workers that it takes."""
    folder = _folder()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(folder / "token"))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Seats and logs of its workers, which are those of a host.
        (folder / "tmp").mkdir(exist_ok=True)
        patch.setenv("TMPDIR", str(folder / "tmp"))
        ray = api()
        ray.init(
            address="local",
            num_cpus=0,
            resources={RESOURCE: seats},
            namespace=NAMESPACE,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=100_000_000,
            _temp_dir=str(folder / "t"),
        )
        # For the processes that a launcher starts.
        patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        try:
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder / "t", ignore_errors=True)


@functools.cache
def _folder() -> Path:
    """One for this process, which reads its token once. Short: Ray's socket paths must fit 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="cbray-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    return folder
