"""A web server that serves a pack and means harm, and a cache folder that somebody has prepared."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from colibri.errors import CheckpointError, ColibriError, ConfigError, WeightsUnavailable
from colibri.kernels.factory import make_backend
from colibri.models.packs.fetched import open_fetched
from colibri.models.packs.manifest import MANIFEST_NAME
from colibri.models.packs.pack import Pack
from tests.support.packs import pack, small_mixtral
from tests.support.tries import Tries

pytest.importorskip("aiohttp")

BACKEND = make_backend("reference")
#: What a refusal may take in memory beyond what was asked for.
MEMORY_BYTES = 64 << 20

Answer = Callable[["Server", BaseHTTPRequestHandler, bytes], bool]
"""Handles a request for a file with that content; False: as an honest server would."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("packs")
    return pack(small_mixtral(folder / "model", "bf16"), folder / "pack", "bf16")


class Server(ThreadingHTTPServer):
    """url: of the pack; seen: paths asked for, in order."""

    daemon_threads = True

    def __init__(self, folder: Path, answer: Answer) -> None:
        self.seen: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.seen.append(self.path)
                path = folder / self.path.rpartition("/")[2]
                content = path.read_bytes() if path.exists() else b""
                if answer(server, self, content):
                    return
                wanted = self.headers.get("Range")
                part, status = content, 200
                if wanted and self.command == "GET":
                    first, last = wanted.removeprefix("bytes=").split("-")
                    part, status = content[int(first) : int(last) + 1], 206
                self.send_response(status)
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(part)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/pack"


@contextmanager
def serving(folder: Path, answer: Answer = lambda server, handler, content: False) -> Iterator[Server]:
    server = Server(folder, answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_an_honest_server(made: Pack, tmp_path: Path) -> None:
    with serving(made.folder) as server:
        model = open_fetched(server.url, tmp_path)
        assert model.expert(0, 1, BACKEND).data.tobytes() == made.expert(0, 1, BACKEND).data.tobytes()


def test_redirects_elsewhere(made: Pack, tmp_path: Path, tries: Tries) -> None:
    with serving(made.folder) as secret:
        places = [
            "file:///etc/passwd",
            "ftp://127.0.0.1/pack.json",
            "gopher://127.0.0.1/",
            f"{secret.url}/pack.json",
            f"http://localhost:{secret.server_address[1]}/pack.json",
            f"http://[::ffff:127.0.0.1]:{secret.server_address[1]}/pack.json",
            "http://169.254.169.254/latest/meta-data/",
            "http://10.0.0.1/",
            "http://0.0.0.0/",
        ]
        for place in places:

            def lead(
                server: Server, handler: BaseHTTPRequestHandler, content: bytes, to: str = place
            ) -> bool:
                handler.send_response(302)
                handler.send_header("Location", to)
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return True

            with serving(made.folder, lead) as server, pytest.raises(ColibriError) as info:
                open_fetched(server.url, tmp_path)
            assert isinstance(info.value, CheckpointError | WeightsUnavailable), (place, info.value)
        assert secret.seen == []
    tries("redirects to other hosts and schemes", len(places))


def test_redirects_on_the_same_server_are_followed(made: Pack, tmp_path: Path) -> None:
    def lead(server: Server, handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        if "moved" in handler.path:
            return False
        handler.send_response(302)
        handler.send_header("Location", f"/moved{handler.path}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    with serving(made.folder, lead) as server:
        assert open_fetched(server.url, tmp_path).pack_hash == made.pack_hash


def test_answers_larger_than_asked_for(made: Pack, tmp_path: Path, tries: Tries) -> None:
    """A server without ranges, and one that never ends."""

    def endless(server: Server, handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        if handler.command == "HEAD":
            return False
        handler.send_response(206)
        handler.end_headers()
        piece = b"x" * (1 << 20)
        try:
            for _ in range(2048):
                handler.wfile.write(piece)
        except OSError:
            pass
        return True

    def gzipped(server: Server, handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        if handler.command == "HEAD":
            return False
        bomb = gzip.compress(bytes(256 << 20), 1)
        handler.send_response(206)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(bomb)))
        handler.end_headers()
        with suppress(OSError):
            handler.wfile.write(bomb)
        return True

    for answer in (endless, gzipped):
        with serving(made.folder, answer) as server:
            before = peak()
            with pytest.raises((CheckpointError, WeightsUnavailable)):
                open_fetched(server.url, tmp_path)
            # The bomb itself is made in this process, before it is packed.
            assert peak() - before < MEMORY_BYTES + (512 << 20 if answer is gzipped else 0)
    tries("endless and packed answers", 2)


@pytest.mark.parametrize("claimed", [65 << 20, 1 << 40, -1, 10])
def test_manifests_of_another_size_than_they_say(
    made: Pack, tmp_path: Path, tries: Tries, claimed: int
) -> None:
    def lie(server: Server, handler: BaseHTTPRequestHandler, content: bytes) -> bool:
        if handler.command != "HEAD":
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(claimed))
        handler.end_headers()
        return True

    with serving(made.folder, lie) as server, pytest.raises((CheckpointError, WeightsUnavailable)):
        open_fetched(server.url, tmp_path)
    tries("lies about a size", 1)


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/evil", "a/b", "..", ".hidden", "a\\b", "c:evil", "", "a\nb", "x" * 256]
)
def test_names_that_lead_out_of_the_cache(made: Pack, tmp_path: Path, tries: Tries, name: str) -> None:
    for section in ("texts", "weights"):
        document = json.loads((made.folder / MANIFEST_NAME).read_bytes())
        document[section][name] = next(iter(document[section].values()))
        raw = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
        elsewhere = tmp_path / section
        elsewhere.mkdir()
        (elsewhere / MANIFEST_NAME).write_bytes(raw)
        with serving(elsewhere) as server, pytest.raises(CheckpointError, match="expected plain file names"):
            open_fetched(server.url, tmp_path / "home")
    assert not (tmp_path / "home" / "weights").exists()
    tries("names that lead out of the cache", 2)


@pytest.mark.parametrize("field", ["sha256", "file", "offset"])
def test_blobs_that_point_elsewhere(made: Pack, tmp_path: Path, tries: Tries, field: str) -> None:
    document = json.loads((made.folder / MANIFEST_NAME).read_bytes())
    blob = document["blobs"]["layers.0.experts.0"]
    blob[field] = {"sha256": "../" * 20 + "etc", "file": "../../etc/passwd", "offset": 1 << 61}[field]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for text in made.manifest.texts:
        (elsewhere / text).write_bytes((made.folder / text).read_bytes())
    (elsewhere / MANIFEST_NAME).write_bytes((json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
    with serving(elsewhere) as server, pytest.raises(CheckpointError, match=field):
        open_fetched(server.url, tmp_path / "home")
    tries("blobs that point elsewhere", 1)


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::http://127.0.0.1:9/pack",
        "zip://pack::file:///etc/passwd",
        "http://127.0.0.1:9/a::file:///etc",
        "nothing://127.0.0.1/pack",
    ],
)
def test_schemes_within_schemes(tmp_path: Path, tries: Tries, url: str) -> None:
    with pytest.raises(ConfigError, match="MODEL: expected "):
        open_fetched(url, tmp_path)
    tries("schemes within schemes", 1)


def test_a_prepared_cache(made: Pack, tmp_path: Path, tries: Tries) -> None:
    """Links, pipes and folders in the place of blobs: nothing outside is written or taken, nobody waits."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    blob = made.manifest.blobs["layers.0.experts.0"].sha256

    def prepare(kind: str, home: Path) -> None:
        folder = home / "weights" / "blobs" / blob[:2]
        if kind == "linked folder":
            folder.parent.mkdir(parents=True)
            (tmp_path / "outside").mkdir()
            folder.symlink_to(tmp_path / "outside")
            return
        if kind == "linked pack":
            (home / "weights" / "packs").mkdir(parents=True)
            (tmp_path / "outside2").mkdir()
            (home / "weights" / "packs" / made.pack_hash).symlink_to(tmp_path / "outside2")
            return
        folder.mkdir(parents=True)
        if kind == "linked blob":
            (folder / blob).symlink_to(victim)
        elif kind == "linked part":
            (folder / f"{blob}.part").symlink_to(victim)
        elif kind == "pipe":
            os.mkfifo(folder / f"{blob}.part")
        elif kind == "cut blob":
            (folder / blob).write_bytes(b"short")

    kinds = ["linked folder", "linked pack", "linked blob", "linked part", "pipe", "cut blob"]
    with serving(made.folder) as server:
        for kind in kinds:
            home = tmp_path / kind
            prepare(kind, home)
            begun = time.monotonic()
            if kind in ("linked blob", "cut blob"):
                got = open_fetched(server.url, home).expert(0, 0, BACKEND)
                assert got.data.tobytes() == made.expert(0, 0, BACKEND).data.tobytes()
            else:
                with pytest.raises(CheckpointError, match="of the cache, got "):
                    open_fetched(server.url, home).expert(0, 0, BACKEND)
            assert time.monotonic() - begun < 60
            assert victim.read_bytes() == b"precious"
    for outside in ("outside", "outside2"):
        assert list((tmp_path / outside).iterdir()) == []
    tries("prepared caches", len(kinds))


def peak() -> int:
    """Resident bytes of this process at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")
