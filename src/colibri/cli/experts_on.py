"""The option by which a router is told that its workers are GPUs of a family."""

from __future__ import annotations

import argparse
import re


def add_experts_on(parser: argparse.ArgumentParser, told: str) -> None:
    parser.add_argument(
        "--experts-on", type=_experts_on, default=argparse.SUPPRESS, metavar="KIND", help=told
    )


def _experts_on(value: str) -> str:
    if re.fullmatch(r"cuda/(simt|mma-sm\d{2,3})(\+int4-cpu)?", value) is None:
        raise argparse.ArgumentTypeError(f"expected cuda/simt or cuda/mma-smNN, got {value!r}")
    return value
