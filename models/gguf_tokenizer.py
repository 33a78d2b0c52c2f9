"""Rebuild a Hugging Face tokenizer.json from the vocabulary inside a GGUF.

A GGUF names its pre-tokenizer and does not describe it, so each name needs a rule that is known to be right;
an unknown name is refused, because a guess gives plausible text with other ids.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from colibri.errors import CheckpointError
from colibri.models.gguf_llama import GgufVocabulary

_CONTROL = 3


def _smollm() -> pre_tokenizers.PreTokenizer:
    """Every digit alone, then bytes split by the GPT-2 pattern, as in SmolLM's own tokenizer.json."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


_PRE_TOKENIZERS = {"smollm": _smollm}


def build_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """A byte-level BPE tokenizer with the GGUF's tokens, merges and control tokens.

    Raises CheckpointError for another tokenizer model than `gpt2` or a pre-tokenizer that is not known.
    """
    if vocabulary.model != "gpt2":
        raise CheckpointError(
            f"tokenizer.ggml.model: expected gpt2 (byte-level BPE), got {vocabulary.model!r}"
        )
    make_pre_tokenizer = _PRE_TOKENIZERS.get(vocabulary.pre)
    if make_pre_tokenizer is None:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise CheckpointError(f"tokenizer.ggml.pre: expected one of {known}, got {vocabulary.pre!r}")
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        raise CheckpointError("tokenizer.ggml.tokens: expected each token once, got duplicates")
    merges = []
    for merge in vocabulary.merges:
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = make_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(vocabulary.tokens, vocabulary.token_types, strict=True)
            if kind == _CONTROL
        ]
    )
    return tokenizer


def tokenizer_config(vocabulary: GgufVocabulary, context: int) -> dict[str, object]:
    """tokenizer_config.json for a tokenizer of `build_tokenizer`; `context` is the longest sequence in
    tokens.
    """
    return {
        # The generic class takes tokenizer.json as it is; GPT2Tokenizer would put its own pre-tokenizer in.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocabulary.add_bos,
        "add_prefix_space": False,
        "bos_token": vocabulary.tokens[vocabulary.bos],
        "eos_token": vocabulary.tokens[vocabulary.eos],
        "unk_token": vocabulary.tokens[vocabulary.unknown],
        "pad_token": vocabulary.tokens[vocabulary.padding],
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": vocabulary.chat_template,
    }
