"""Names of the small files in a checkpoint's folder, for code that needs only the names."""

from __future__ import annotations

CONFIG_NAME = "config.json"
GENERATION_NAME = "generation_config.json"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
#: Of any of them: tokenizers of large vocabularies have tens of megabytes.
MAX_TEXT_BYTES = 256 << 20
