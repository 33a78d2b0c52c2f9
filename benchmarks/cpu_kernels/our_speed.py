"""Colibri as an arm of its own process: `python -m benchmarks.cpu_kernels.our_speed MODEL [WORKERS]`

Same lines as the peers' (benchmarks/peers/hf_speed.py): {"prompt": [ids], "new": N} -> {"prefill_s", "decode_s"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.core.speed import Ours


def main() -> None:
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with Ours(Path(sys.argv[1]), workers) as ours:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            found = ours.run(request["prompt"], request["new"])
            decode_s = request["new"] / found.decode_tokens_s if request["new"] else 0.0
            print(json.dumps({"prefill_s": found.prefill_s, "decode_s": decode_s}), flush=True)


if __name__ == "__main__":
    main()
