"""A small good checkpoint, and ways to damage a copy of it."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.models.safetensors_writer import INDEX_NAME, SINGLE_NAME

PARAMS = RandomMixtral(
    hidden=32, ffn=48, layers=2, experts=4, top_k=2, heads=4, kv_heads=2, vocab=300, max_positions=512, seed=3
)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('no role ' ~ m.role) }}{% endif %}[{{ m.role }}] {{ m.content }} {% endfor %}"
)
HIDDEN, VOCAB, CONTEXT = PARAMS.hidden, PARAMS.vocab, PARAMS.max_positions
Json = dict[str, Any]
Damage = Callable[[Path], object]
ABSENT = object()
SECOND = "model-00002-of-00002.safetensors"
FIRST = "model-00001-of-00002.safetensors"
#: A tensor in the middle.
EXPERT = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
NORM = "model.norm.weight"


def good(folder: Path) -> Path:
    """The checkpoint that all cases start from: with a chat template that knows three roles."""
    random_mixtral(folder, PARAMS)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def copy(source: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(source, to))


def in_order(*damages: Damage) -> Damage:
    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


def write(name: str, content: bytes | str) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def pipe(name: str) -> Damage:
    """A FIFO that nobody will ever write to."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def directory(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def link(name: str, to: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(to)

    return damage


def resize(name: str, change: int) -> Damage:
    """Cuts bytes off the end (change < 0) or adds zeros."""

    def damage(folder: Path) -> None:
        size = (folder / name).stat().st_size
        os.truncate(folder / name, size + change)

    return damage


def truncate_to(name: str, size: int) -> Damage:
    return lambda folder: os.truncate(folder / name, size)


def edit(name: str, **fields: object) -> Damage:
    """Sets fields of a JSON file; ABSENT takes one out."""

    def damage(folder: Path) -> None:
        raw = {**json.loads((folder / name).read_text()), **fields}
        kept = {key: value for key, value in raw.items() if value is not ABSENT}
        (folder / name).write_text(json.dumps(kept))

    return damage


def config(**fields: object) -> Damage:
    return edit("config.json", **fields)


def edit_tokenizer(change: Callable[[Json], object]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "tokenizer.json"
        raw = json.loads(path.read_text())
        change(raw)
        path.write_text(json.dumps(raw))

    return damage


def read_header(path: Path) -> tuple[Json, bytes]:
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def write_header(path: Path, header: object, data: bytes, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def raw_header(text: bytes, length: int | None = None) -> Damage:
    """Other bytes in the place of the header, the data kept."""

    def damage(folder: Path) -> None:
        _, data = read_header(folder / SINGLE_NAME)
        write_header(folder / SINGLE_NAME, text, data, length)

    return damage


def header(change: Callable[[Json], object]) -> Damage:
    """Edits the header's JSON, the data kept."""

    def damage(folder: Path) -> None:
        found, data = read_header(folder / SINGLE_NAME)
        change(found)
        write_header(folder / SINGLE_NAME, found, data)

    return damage


def entry(name: str, **fields: object) -> Damage:
    """Edits one tensor's entry."""
    return header(lambda found: found[name].update(fields))


def rename(old: str, new: str) -> Damage:
    return header(lambda found: found.update({new: found.pop(old)}))


def drop(name: str) -> Damage:
    """Takes a tensor and its bytes out, so that the file itself stays right."""

    def damage(folder: Path) -> None:
        found, data = read_header(folder / SINGLE_NAME)
        begin, end = found.pop(name)["data_offsets"]
        for other in found.values():
            if "data_offsets" in other and other["data_offsets"][0] >= end:
                other["data_offsets"] = [at - (end - begin) for at in other["data_offsets"]]
        write_header(folder / SINGLE_NAME, found, data[:begin] + data[end:])

    return damage


def add(name: str, dtype: str, shape: list[int], content: bytes) -> Damage:
    """Appends a tensor."""

    def damage(folder: Path) -> None:
        found, data = read_header(folder / SINGLE_NAME)
        found[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(content)],
        }
        write_header(folder / SINGLE_NAME, found, data + content)

    return damage


def poke(name: str, element: int, pattern: int) -> Damage:
    """Overwrites one bf16 element of a tensor."""

    def damage(folder: Path) -> None:
        found, _ = read_header(folder / SINGLE_NAME)
        whole = bytearray((folder / SINGLE_NAME).read_bytes())
        (length,) = struct.unpack("<Q", whole[:8])
        at = 8 + length + found[name]["data_offsets"][0] + 2 * element
        whole[at : at + 2] = struct.pack("<H", pattern)
        (folder / SINGLE_NAME).write_bytes(whole)

    return damage


def shard(folder: Path) -> None:
    """The same checkpoint in two files with an index."""
    found, data = read_header(folder / SINGLE_NAME)
    found.pop("__metadata__", None)
    names = sorted(found, key=lambda name: int(found[name]["data_offsets"][0]))
    weight_map: dict[str, str] = {}
    for file, part in ((FIRST, names[: len(names) // 2]), (SECOND, names[len(names) // 2 :])):
        begin = found[part[0]]["data_offsets"][0]
        end = found[part[-1]]["data_offsets"][1]
        own = {
            name: {**found[name], "data_offsets": [at - begin for at in found[name]["data_offsets"]]}
            for name in part
        }
        write_header(folder / file, own, data[begin:end])
        weight_map |= dict.fromkeys(part, file)
    (folder / SINGLE_NAME).unlink()
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def placed(tensor: str, file: object) -> Damage:
    """Shards the checkpoint, then says in the index that `tensor` lies in `file` (ABSENT: nowhere)."""

    def damage(folder: Path) -> None:
        shard(folder)
        index = json.loads((folder / INDEX_NAME).read_text())
        if file is ABSENT:
            del index["weight_map"][tensor]
        else:
            index["weight_map"][tensor] = file
        (folder / INDEX_NAME).write_text(json.dumps(index))

    return damage


def index(content: object) -> Damage:
    text = content if isinstance(content, str) else json.dumps(content)
    return in_order(shard, write(INDEX_NAME, text))
