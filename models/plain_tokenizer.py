"""A tokenizer for models without a vocabulary of their own: one token per byte, then fillers up to the
model's size.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS_ID = 1
EOS_ID = 2
MIN_VOCAB = 4

_SPECIAL = ("<unk>", "<s>", "</s>")
_COMMON = " etaoinshrdlucmfwypvbgkqjxzETAOINSHRDLUCMFWYPVBGKQJXZ0123456789.,!?'\"-:;()\n"


def write_plain_tokenizer(folder: Path, vocab: int, context: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json with exactly `vocab` tokens. context: in tokens.

    Ids: <unk>, <s> (put before each text), </s>, the 256 bytes with common letters first (those that do not fit
        become <unk>),
    and fillers `w0`, `w1`, ..., which decode but never come out of text.
    """
    letters = _byte_letters()
    room = max(0, vocab - len(_SPECIAL))
    tokens = [*_SPECIAL, *letters[:room], *(f"w{i}" for i in range(room - len(letters)))]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], unk_token=_SPECIAL[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS_ID)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def _byte_letters() -> list[str]:
    """The byte-level alphabet, letters that stand for common ASCII first."""
    encode = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    common = [encode.pre_tokenize_str(c)[0][0] for c in _COMMON]
    return common + sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(common))
