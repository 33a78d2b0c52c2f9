from __future__ import annotations

import socket
from pathlib import Path

import pytest

from colibri.cli.listen import check_free
from colibri.errors import ConfigError


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0"])
def test_free_addresses(listen: str) -> None:
    check_free(listen, "--listen")


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match=f"--listen: expected an address that can be bound, got {listen}"
        ):
            check_free(listen, "--listen")
    check_free(listen, "--listen")


def test_a_free_socket_path_and_a_folder_that_is_missing(tmp_path: Path) -> None:
    check_free(f"unix:{tmp_path}/c.sock", "--listen")
    with pytest.raises(ConfigError, match="--listen"):
        check_free(f"unix:{tmp_path}/missing/c.sock", "--listen")


@pytest.mark.parametrize(
    "listen", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "unix:relative", "256.0.0.1:0"]
)
def test_no_address(listen: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        check_free(listen, "--listen")
