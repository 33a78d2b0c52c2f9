"""Find the weight files of a Hugging Face folder and which tensor lies in which: the index is the only
authority.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from colibri.errors import CheckpointError
from colibri.models.json_file import read_object
from colibri.models.safetensors_file import SafetensorsFile
from colibri.models.safetensors_writer import INDEX_NAME, SINGLE_NAME

_MAX_INDEX_BYTES = 64 << 20
_MAX_NAMED = 4


def open_weights(folder: Path) -> dict[str, SafetensorsFile]:
    """The file of every tensor. Headers are read and checked, data is not.

    With an index, exactly its files are opened, other files in the folder are ignored, and its files must
    hold exactly what it says; without one, `model.safetensors` is all. Raises CheckpointError for anything
    else.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: expected a folder with a checkpoint")
    index = folder / INDEX_NAME
    if not index.exists():
        single = folder / SINGLE_NAME
        if not single.exists():
            raise CheckpointError(f"{folder}: expected {INDEX_NAME} or {SINGLE_NAME}, got neither")
        file = SafetensorsFile(single)
        return dict.fromkeys(file.tensors, file)
    weight_map = _weight_map(index)
    files = {name: SafetensorsFile(folder / name) for name in sorted(set(weight_map.values()))}
    for tensor, name in weight_map.items():
        if tensor not in files[name].tensors:
            raise CheckpointError(f"{index}: {tensor}: expected in {name}, which does not hold it")
    for name, file in files.items():
        strays = [tensor for tensor in file.tensors if weight_map.get(tensor) != name]
        if strays:
            raise CheckpointError(
                f"{folder / name}: holds tensors that the index does not place there: {listed(strays)}"
            )
    return {tensor: files[name] for tensor, name in weight_map.items()}


def listed(names: list[str]) -> str:
    """The first few names and how many more there are, for error messages."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _weight_map(index: Path) -> Mapping[str, str]:
    weight_map = read_object(index, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index}: weight_map: expected an object with tensor names, got {weight_map!r:.60}"
        )
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _is_plain_name(name):
            raise CheckpointError(
                f"{index}: weight_map: {tensor:.200}: expected the plain name of a .safetensors file, "
                f"got {name!r:.200}"
            )
    return weight_map


def _is_plain_name(name: str) -> bool:
    return (
        name.endswith(".safetensors")
        and not name.startswith(".")
        and len(name) <= 255
        and not any(c in "/\\:" or ord(c) < 32 for c in name)
    )
