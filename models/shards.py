"""Find the weight files of a Hugging Face folder, and which tensor is in which. The index alone counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from colibri.errors import CheckpointError
from colibri.models.json_file import read_object
from colibri.models.safetensors_file import SafetensorsFile
from colibri.models.safetensors_writer import INDEX_NAME, SINGLE_NAME

_MAX_INDEX_BYTES = 64 << 20
#: Names in one error message.
MAX_NAMED = 4
#: What users hold who hold no safetensors: never read, since most of them are pickles.
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5", ".onnx")


def open_weights(folder: Path) -> dict[str, SafetensorsFile]:
    """Returns the file of every tensor. Reads and checks headers, not data.

    With an index, exactly its files are opened and must hold exactly what it says; other files in the folder are
    ignored. Without an index, `model.safetensors` is the only file. Raises CheckpointError for anything else.
    """
    if not folder.is_dir():
        raise no_folder(folder)
    index = folder / INDEX_NAME
    if not index.exists():
        single = folder / SINGLE_NAME
        if not single.exists():
            others = sorted(path.name for path in folder.iterdir() if path.suffix in _OTHER_FORMATS)
            got = f"{listed(others)}: convert them to safetensors" if others else "neither"
            raise CheckpointError.of(folder, "", f"{INDEX_NAME} or {SINGLE_NAME}", got)
        file = SafetensorsFile(single)
        return dict.fromkeys(file.tensors, file)
    weight_map = _weight_map(index)
    files = {name: SafetensorsFile(folder / name) for name in sorted(set(weight_map.values()))}
    for tensor, name in weight_map.items():
        if tensor not in files[name].tensors:
            raise CheckpointError.of(f"{index}: weight_map", tensor, f"a tensor of {name}", "none there")
    for name, file in files.items():
        strays = [tensor for tensor in file.tensors if weight_map.get(tensor) != name]
        if strays:
            raise CheckpointError.of(
                folder / name, "tensors", "those that the index places here", f"also {listed(strays)}"
            )
    return {tensor: files[name] for tensor, name in weight_map.items()}


def listed(names: list[str]) -> str:
    """Returns the first few names and how many more there are, for error messages."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(name[:100] for name in names[:MAX_NAMED]) + more


def no_folder(folder: Path) -> CheckpointError:
    """Returns the error for a path that is not a folder."""
    got = "a file" if folder.exists() else "nothing of that name"
    return CheckpointError.of(folder, "", "a folder with a checkpoint", got)


def _weight_map(index: Path) -> Mapping[str, str]:
    weight_map = read_object(index, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError.of(index, "weight_map", "an object with tensor names", repr(weight_map))
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _is_plain_name(name):
            where = f"{index}: weight_map"
            raise CheckpointError.of(where, tensor, "the plain name of a .safetensors file", repr(name))
    return weight_map


def _is_plain_name(name: str) -> bool:
    return (
        name.endswith(".safetensors")
        and not name.startswith(".")
        and len(name) <= 255
        and not any(c in "/\\:" or ord(c) < 32 for c in name)
    )
