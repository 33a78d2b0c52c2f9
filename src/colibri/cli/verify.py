"""Read all of a model and compare it with what it was when it was first loaded, without serving it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from colibri.cli import options

if TYPE_CHECKING:
    from colibri.models.checkpoint import Checkpoint
    from colibri.models.packs.pack import Pack

ABOUT = """
Every load of a checkpoint compares each tensor that it reads, and the tokenizer's, template's and configuration's
files, with the digests noted when they were first loaded: colibri-digests.json beside the model or, where that folder
cannot be written, a file in COLIBRI_HOME. This does the same for all of it at once, and notes what was never loaded so
far. With nothing noted at all, what is there is believed.

A pack brings its digests along in pack.json: all of its blobs are compared with those. MODEL#sha256=... pins pack.json
itself.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument(
        "--accept",
        action="store_true",
        help="note the model as it is now, where it was replaced on purpose; running servers keep what they have",
    )


def run(args: argparse.Namespace) -> int:
    from colibri.errors import ConfigError
    from colibri.models.model import open_model
    from colibri.models.packs.pack import Pack

    model = open_model(args.model)
    if isinstance(model, Pack):
        if args.accept:
            raise ConfigError(
                "--accept", "a checkpoint: what a pack must be stands in its pack.json", "a pack"
            )
        return _verify_pack(model)
    return _accept(model) if args.accept else _verify(model)


def _verify(checkpoint: Checkpoint) -> int:
    from colibri.cli.progress import Loading
    from colibri.models.digest_book import changed
    from colibri.models.digest_file import add_digests
    from colibri.models.home import colibri_home
    from colibri.models.verify import verify_checkpoint

    folder, home = checkpoint.folder, colibri_home(os.environ)
    with Loading() as loading:
        verified = verify_checkpoint(checkpoint, home, lambda done, all: loading.update("reading", done, all))
    for piece in verified.changed:
        error = changed(folder, piece, verified.noted[piece], verified.found[piece])
        print(f"colibri verify: {error}", file=sys.stderr)
    count = len(verified.found)
    if verified.changed:
        print(f"{folder}: {len(verified.changed)} of {count} pieces are not as they were first loaded")
        return 1
    known = count - len(verified.new)
    text = f"{folder}: {known} of {count} pieces are as they were first loaded"
    if verified.new:
        place = add_digests(folder, home, verified.new)[0]
        text += f"; {len(verified.new)} were not loaded before: believed, and noted in {place}"
    print(text)
    return 0


def _accept(checkpoint: Checkpoint) -> int:
    from colibri.cli.progress import Loading
    from colibri.cli.terminal import shown
    from colibri.models.digest_book import differences
    from colibri.models.digest_file import read_digests, replace_digests
    from colibri.models.home import colibri_home
    from colibri.models.verify import piece_name, read_all

    folder, home = checkpoint.folder, colibri_home(os.environ)
    with Loading() as loading:
        found = read_all(checkpoint, lambda done, total: loading.update("reading", done, total))
    try:
        noted = read_digests(folder, home)
    except Exception as error:
        from colibri.errors import CheckpointError

        if not isinstance(error, CheckpointError):
            raise
        print(f"thrown away: {error}")
        noted = {}
    for piece in differences(noted, found):
        print(shown(f"changed: {piece_name(piece)}: {noted[piece]} -> {found[piece]}"))
    place = replace_digests(folder, home, found)
    print(f"{folder}: {len(found)} pieces accepted as they are now, noted in {place}")
    return 0


def _verify_pack(pack: Pack) -> int:
    from colibri.cli.progress import Loading
    from colibri.kernels.factory import make_backend
    from colibri.models.verify import verify_pack

    backend = make_backend("cpu", threads=1)
    try:
        with Loading() as loading:
            verify_pack(pack, backend, lambda done, total: loading.update("reading", done, total))
    finally:
        backend.close()
    print(
        f"{pack.name}: all {len(pack.manifest.blobs)} blobs are as pack.json says; its sha256 is {pack.sha256}"
    )
    return 0
