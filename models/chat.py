"""Find a checkpoint's chat template. Only its text is read here; a confined process runs it."""

from __future__ import annotations

from pathlib import Path

from colibri.errors import CheckpointError
from colibri.models.config import wrong
from colibri.models.json_file import read_bounded, read_object
from colibri.models.text_names import TEMPLATE_NAME, TOKENIZER_CONFIG_NAME

DEFAULT = "default"
_MAX_TEMPLATE_BYTES = 1 << 20
_MAX_CONFIG_BYTES = 16 << 20


def load_chat_source(folder: str | Path, name: str = DEFAULT) -> str | None:
    """Returns the source of the checkpoint's template `name`, or None if it has no template at all.

    `chat_template.jinja` takes precedence over `chat_template` in tokenizer_config.json, which is a string or a
    list of objects with `name` and `template`. Raises CheckpointError for a malformed entry or an unknown name.
    """
    sources = _sources(Path(folder))
    if not sources:
        return None
    if name not in sources:
        raise CheckpointError(f"chat template: expected one of {', '.join(sorted(sources))}, got {name!r}")
    return sources[name]


def _sources(folder: Path) -> dict[str, str]:
    path = folder / TEMPLATE_NAME
    if path.exists():
        try:
            return {DEFAULT: read_bounded(path, _MAX_TEMPLATE_BYTES).decode("utf-8")}
        except UnicodeDecodeError as error:
            got = f"text that is no UTF-8 (byte {error.start}: {error.reason})"
            raise CheckpointError.of(path, "", "a template", got) from error
    if not (folder / TOKENIZER_CONFIG_NAME).exists():
        return {}
    value = read_object(folder / TOKENIZER_CONFIG_NAME, _MAX_CONFIG_BYTES).get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    if not isinstance(value, list):
        raise wrong("chat_template", "a string or a list of named templates", value, TOKENIZER_CONFIG_NAME)
    sources: dict[str, str] = {}
    for entry in value:
        name = entry.get("name") if isinstance(entry, dict) else None
        source = entry.get("template") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(source, str) or name in sources:
            raise wrong(
                "chat_template", "objects with a unique `name` and a `template`", entry, TOKENIZER_CONFIG_NAME
            )
        sources[name] = source
    return sources
