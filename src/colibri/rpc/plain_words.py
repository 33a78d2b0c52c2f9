"""What gRPC itself says of a failed call, in words that tell a user what to look at."""

from __future__ import annotations

import grpc

_UNIMPLEMENTED = (
    "the server does not offer this call: `colibri serve` answers prompts and operators, `colibri router` layers "
    "of rows, `colibri expert` routers"
)
#: Found in the details of UNAVAILABLE -> what it means. The first that fits counts.
_UNAVAILABLE = (
    ("Connection refused", "nobody listens there (connection refused)"),
    ("No such file or directory", "nobody listens there (there is no such socket)"),
    ("Permission denied", "this user may not open that socket (permission denied)"),
    ("Domain name not found", "no host goes by this name"),
    ("DNS resolution failed", "no host goes by this name"),
    ("No route to host", "no route to this host"),
    ("Network is unreachable", "no route to this host"),
    ("timed out", "no answer to the attempt to connect"),
    ("Socket closed", "the connection was lost (socket closed)"),
    ("Connection reset", "the connection was lost (reset by the other side)"),
    ("Broken pipe", "the connection was lost (broken pipe)"),
    ("GOAWAY", "the server ended the connection"),
)


def plain_words(code: grpc.StatusCode, details: str) -> str:
    """What to tell of a status that no Colibri server wrote.

    code: the status.
    details: gRPC's own text, which is kept where it is not known here.
    """
    if code is grpc.StatusCode.UNIMPLEMENTED and details == "Method not found!":
        return _UNIMPLEMENTED
    if code is grpc.StatusCode.UNAVAILABLE:
        for part, words in _UNAVAILABLE:
            if part in details:
                return words
    return f"{code.name}: {details}"
