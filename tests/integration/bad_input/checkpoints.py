"""The table of checkpoints that must be refused: what is wrong with the folder, and the line that says so."""

from __future__ import annotations

from tests.integration.bad_input.checkpoint_configs import CONFIGS, FOLDERS
from tests.integration.bad_input.checkpoint_files import INDICES, SAFETENSORS, TENSORS
from tests.integration.bad_input.checkpoint_texts import TEMPLATES, TOKENIZERS, VALUES

CASES = (*FOLDERS, *CONFIGS, *SAFETENSORS, *TENSORS, *INDICES, *TOKENIZERS, *TEMPLATES, *VALUES)
