"""The wall clock jumps: it tells dates (certificates, tokens, logs), never how long something took or may take."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WALL = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.now\b|\bdatetime\.datetime\.now\b|\butcnow\b")
FOLDERS = ("src/colibri", "cluster", "coordinator", "expert_service", "kernels", "models", "router_service")
#: File -> the date that it is asked for.
DATES = {
    "src/colibri/cli/token_show.py": "whether a token has expired",
    "src/colibri/cli/token_new.py": "when a token expires",
    "src/colibri/cli/expert.py": "an incarnation that no life before had",
    "src/colibri/security/authority.py": "from when a certificate is valid",
    "src/colibri/rpc/diagnose.py": "whether a certificate has expired",
    "src/colibri/security/channel.py": "whether a certificate has expired",
    "src/colibri/security/server_certificates.py": "whether a certificate expires soon",
    "src/colibri/security/tokens.py": "whether a token has expired",
    "models/confined/template.py": "today, for chat templates that ask",
}


def test_durations_use_the_monotonic_clock() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if WALL.search(path.read_text(encoding="utf-8"))
    }
    assert found == DATES.keys()
