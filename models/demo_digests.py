"""Write the list of tensor digests that the demo model is checked against: `python -m
colibri.models.demo_digests [OUT]`.

Only for a deliberate change of the recipe or the gate rows; the list is committed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from colibri.models.demo_source import check_gguf, find_gguf
from colibri.models.demo_weights import DIGESTS, DemoWeights, demo_config, demo_specs, tensor_digest
from colibri.models.gguf_llama import GgufLlama


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else DIGESTS
    path = find_gguf()
    check_gguf(path)
    source = GgufLlama(path)
    weights = DemoWeights(source)
    config = demo_config(source.shape, source.vocabulary())
    digests = {spec.name: tensor_digest(weights(spec)) for spec in demo_specs(config)}
    out.write_text(json.dumps(digests, indent=0) + "\n")
    print(f"{out}: {len(digests)} tensors")


if __name__ == "__main__":
    main()
