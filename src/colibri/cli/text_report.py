"""What `inspect` tells of a checkpoint's text side: tokenizer, chat template, defaults of generation, each with
the file that it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from colibri.errors import CheckpointError
from colibri.models.chat_renderer import load_chat_renderer
from colibri.models.model import Model
from colibri.models.text_names import TEMPLATE_NAME, TOKENIZER_CONFIG_NAME, TOKENIZER_NAME
from colibri.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """vocab: number of ids it knows; special: how many of them are control tokens; bos, eos: as text; adds_bos:
    whether a plain text begins with bos."""

    source: str
    vocab: int
    special: int
    bos: str | None
    bos_id: int | None
    eos: str | None
    adds_bos: bool


@dataclass(frozen=True, slots=True)
class Default:
    """What a request gets where it says nothing, and where that comes from."""

    value: object
    source: str


@dataclass(frozen=True, slots=True)
class TextReport:
    """tokenizer: None without one. chat_template: its file, None without one. generation: field -> default.
    warnings: what an operator should know before serving."""

    tokenizer: TokenizerFacts | None
    chat_template: str | None
    generation: Mapping[str, Default]
    warnings: tuple[str, ...]


def text_report(checkpoint: Model) -> TextReport:
    """A damaged tokenizer or template is a warning here, so that the rest can be seen."""
    warnings: list[str] = []
    tokenizer = _tokenizer(checkpoint, warnings)
    template = _template(checkpoint, tokenizer, warnings)
    defaults = checkpoint.generation
    fields = {name: value for name, value in asdict(defaults).items() if name not in ("sources", "ignored")}
    generation = {
        name: Default(value, defaults.sources.get(name, "built-in default")) for name, value in fields.items()
    }
    if defaults.ignored:
        warnings.append(
            f"generation_config.json: not supported, so without effect: {', '.join(defaults.ignored)}"
        )
    if not defaults.eos:
        warnings.append("no end-of-sequence id: answers end by length, stop strings or stop ids only")
    facts = _facts(checkpoint, tokenizer, warnings)
    if tokenizer is not None:
        tokenizer.close()
    return TextReport(facts, template, generation, tuple(warnings))


def _tokenizer(checkpoint: Model, warnings: list[str]) -> Tokenizer | None:
    if not (checkpoint.folder / TOKENIZER_NAME).exists():
        warnings.append(f"no {TOKENIZER_NAME}: prompts and answers are token ids only")
        return None
    try:
        return Tokenizer.load(checkpoint.folder, checkpoint.config)
    except CheckpointError as error:
        warnings.append(f"the tokenizer cannot be used: {error.message}")
        return None


def _facts(checkpoint: Model, tokenizer: Tokenizer | None, warnings: list[str]) -> TokenizerFacts | None:
    if tokenizer is None:
        return None
    config = checkpoint.config
    if tokenizer.vocab < config.vocab:
        warnings.append(
            f"{config.vocab - tokenizer.vocab} of the model's {config.vocab} ids have no text in the tokenizer"
        )
    if config.bos is not None and tokenizer.bos is not None and config.bos != tokenizer.bos:
        warnings.append(f"config.json begins texts with id {config.bos}, the tokenizer with {tokenizer.bos}")
    if tokenizer.eos_text:
        ids = tokenizer.encode(tokenizer.eos_text, add_special=False)
        if len(ids) == 1 and checkpoint.generation.eos and ids[0] not in checkpoint.generation.eos:
            warnings.append(
                f"the tokenizer's end token {tokenizer.eos_text!r} (id {ids[0]}) does not end an answer: "
                f"ids {list(checkpoint.generation.eos)} do"
            )
    return TokenizerFacts(
        source=TOKENIZER_NAME,
        vocab=tokenizer.vocab,
        special=len(tokenizer.special),
        bos=tokenizer.bos_text,
        bos_id=tokenizer.bos,
        eos=tokenizer.eos_text,
        adds_bos=tokenizer.add_bos,
    )


def _template(checkpoint: Model, tokenizer: Tokenizer | None, warnings: list[str]) -> str | None:
    if tokenizer is None:
        return None
    source = TEMPLATE_NAME if (checkpoint.folder / TEMPLATE_NAME).exists() else TOKENIZER_CONFIG_NAME
    try:
        found = load_chat_renderer(checkpoint.folder, tokenizer)
    except CheckpointError as error:
        warnings.append(f"the chat template cannot be used: {error.message}")
        return source
    if found is None:
        warnings.append("no chat template: chat messages are refused, plain prompts work")
        return None
    found.close()
    return source
