"""Remove from errors what must not leave a server: folders of its machine, keys, tokens."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

#: An absolute path, also behind "unix:" and "file:", up to what ends one in our texts.
_PATH = re.compile(r"""(?<![\w./\])>])(?<!http:)(?<!https:)(?P<path>/+(?:[^\s/:;,'"()<>|`]+/*)+)""")
#: In quotes a path may hold blanks.
_QUOTED = re.compile(r"""(?<=(['"`]))(?P<path>/[^'"`\n]+)(?=\1)""")
#: /package.Service/Method, as gRPC writes it.
_METHOD = re.compile(r"/[A-Za-z_][\w]*(?:\.\w+)+/\w+")
#: A file's name that says what it is and nothing of the machine.
_FILE = re.compile(r"[\w.-]+\.[A-Za-z]\w*")
_PEM = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|$)", re.DOTALL)
_BEARER = re.compile(r"(?i)\b(bearer)\s+[\w.~+/=-]{16,}")
_TOKEN = re.compile(r"\bclb_[\w-]+")
#: Folders that are known to hold what a server works with: their names may contain anything.
_hidden: tuple[str, ...] = ()
#: Of those who add to it; readers take it as it is.
_hiding = threading.Lock()


def hide(*places: Path | str) -> None:
    """Shows what lies in these folders, or below these URLs, by its name within them only.

    Needed for folders with blanks in their names, which look like the end of a path.
    """
    global _hidden
    found = {form for place in places for form in _forms(str(place))}
    with _hiding:
        # The longest first: one may lie in another.
        _hidden = tuple(sorted({*_hidden, *found} - {"", "/", "."}, key=lambda name: (-len(name), name)))


def _forms(place: str) -> set[str]:
    if "://" in place:
        return {place.rstrip("/")}
    return {place.rstrip("/"), os.path.abspath(place), os.path.realpath(place)}


def public_text(text: str) -> str:
    """Returns the text without paths (the last part of a file's path stays), PEM blocks and tokens."""
    for folder in _hidden:
        text = text.replace(f"{folder}/", "").replace(folder, "<path>")
    text = _PEM.sub("<key>", text)
    text = _BEARER.sub(r"\1 <token>", text)
    text = _TOKEN.sub("<token>", text)
    return _PATH.sub(_without_folder, _QUOTED.sub(_without_folder, text))


def _without_folder(found: re.Match[str]) -> str:
    path = found["path"]
    if _METHOD.fullmatch(path):
        return path
    name = path.rstrip("/.").rpartition("/")[2]
    return name if _FILE.fullmatch(name) and not path.endswith("/") else "<path>"
