"""Read ranges of files of a web server. Ignore what it sends beyond a range; do not decompress; follow few redirects.

fsspec's own reader takes the whole answer, however long, decompresses it, and follows every redirect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from fsspec.implementations.http import HTTPFileSystem

from colibri.errors import CheckpointError
from colibri.models.packs.remote_folder import without_user

_SCHEMES = ("http", "https")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class HttpFolder(HTTPFileSystem):  # type: ignore[misc]
    """The files of a web server, for RemoteFolder.

    Redirects may stay on the server or lead to public addresses (as download networks do), and never from https to
    http. A range brings exactly as many bytes as were asked for, or raises OSError.
    """

    cachable = False

    def __init__(self) -> None:
        super().__init__(get_client=_client)

    async def _cat_file(self, url: str, start: int = 0, end: int = 0, **options: Any) -> bytes:
        length = end - start
        if length <= 0:
            return b""
        session = await self.set_session()
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
        async with session.get(self.encode_url(url), headers=headers) as answer:
            self._raise_not_found_for_status(answer, url)
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise OSError(f"expected the bytes as they are, got {answer.headers['Content-Encoding']}")
            if answer.status != 206 and start:
                raise OSError(f"expected status 206 for a range, got {answer.status}")
            return bytes(await answer.content.readexactly(length))

    async def _info(self, url: str, **options: Any) -> dict[str, Any]:
        session = await self.set_session()
        headers = {"Accept-Encoding": "identity"}
        async with session.head(self.encode_url(url), headers=headers, allow_redirects=True) as answer:
            length = answer.headers.get("Content-Length") if answer.status == 200 else None
        if length is None:
            headers["Range"] = "bytes=0-0"
            async with session.get(self.encode_url(url), headers=headers) as answer:
                self._raise_not_found_for_status(answer, url)
                length = answer.headers.get("Content-Range", "").rpartition("/")[2]
        return {"name": url, "size": int(length) if length.isdecimal() else None, "type": "file"}


async def _client(**options: Any) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check_redirect)
    return aiohttp.ClientSession(
        auto_decompress=False,
        trace_configs=[trace],
        timeout=aiohttp.ClientTimeout(sock_connect=30.0, sock_read=60.0),
        **options,
    )


async def _check_redirect(
    session: aiohttp.ClientSession, context: Any, params: aiohttp.TraceRequestRedirectParams
) -> None:
    place = params.response.headers.get("Location") or params.response.headers.get("URI") or ""
    target = urlsplit(str(params.url.join(type(params.url)(place))))
    source = urlsplit(str(params.url))
    refusal = _refusal(source.scheme, _address(source), target.scheme, _address(target))
    if refusal is None and _address(source) != _address(target):
        host, port = _address(target)
        refusal = await _not_public(host, port)
    if refusal is not None:
        raise CheckpointError.of(
            without_user(str(params.url)), "redirect", "the same server, or a public one", refusal
        )


def _refusal(scheme: str, here: tuple[str, int], other: str, there: tuple[str, int]) -> str | None:
    if other not in _SCHEMES or (scheme == "https" and other == "http"):
        return f"one from {scheme} to {other}"
    if not there[0]:
        return "one without a host"
    return None


async def _not_public(host: str, port: int) -> str | None:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, address in found:
        if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_global:
            return f"{host}, an address of a network that is not public"
    return None


def _address(url: Any) -> tuple[str, int]:
    return url.hostname or "", url.port or _DEFAULT_PORTS.get(url.scheme, 0)
