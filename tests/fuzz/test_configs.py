"""Any config.json, generation_config.json and colibri.yaml is taken or refused precisely."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colibri.cli.config_file import read_config
from colibri.errors import CheckpointError, ConfigError
from colibri.models.config import parse_config
from colibri.models.generation_config import parse_generation_config
from colibri.models.json_file import parse_object
from tests.fuzz.strategies import json_values
from tests.unit.models.test_config import BASE

PRECISE = re.compile(r".+: expected .+, got .+")


def precise(message: str) -> None:
    assert PRECISE.fullmatch(message), message


DEFAULTS: dict[str, Any] = {
    "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.1, "max_new_tokens": 20,
    "eos_token_id": [2], "repetition_penalty": 1.1,
}  # fmt: skip


def changed(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The base with up to three fields replaced by anything or taken out."""
    names = st.sampled_from(
        [*base, "rope_scaling", "rope_parameters", "head_dim", "dtype", "quantization_config"]
    )
    edits = st.dictionaries(names, json_values | st.just(...), max_size=3)

    def apply(edit: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in {**base, **edit}.items() if value is not ...}

    return edits.map(apply)


@settings(deadline=None, max_examples=600)
@given(raw=changed(BASE))
def test_a_configuration_is_sound_or_refused(raw: dict[str, Any]) -> None:
    try:
        config = parse_config(raw)
    except CheckpointError as error:
        precise(error.message)
        return
    assert 1 <= config.top_k <= min(config.experts, 16)
    assert config.heads % config.kv_heads == 0
    assert config.head_dim % 2 == 0
    assert 0 < config.rope_theta < float("inf")
    assert all(0 <= token < config.vocab for token in config.eos)
    assert config.bos is None or 0 <= config.bos < config.vocab


@settings(deadline=None, max_examples=400)
@given(raw=changed(DEFAULTS))
def test_defaults_are_sound_or_refused(raw: dict[str, Any]) -> None:
    config = parse_config(BASE)
    try:
        found = parse_generation_config(raw, config)
    except CheckpointError as error:
        precise(error.message)
        return
    assert 0 <= found.temperature <= 100
    assert 0 < found.top_p <= 1
    assert 0 <= found.min_p <= 1
    assert found.max_new_tokens is None or found.max_new_tokens >= 1
    assert all(0 <= token < config.vocab for token in found.eos)


@settings(deadline=None, max_examples=300)
@given(data=st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_json_is_an_object_or_refused(data: bytes) -> None:
    try:
        found = parse_object(data, "x.json")
    except CheckpointError as error:
        precise(error.message)
        return
    assert json.loads(data) == found or found != found


_YAML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
_TEXTS = st.one_of(
    _YAML.map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode()),
    st.binary(max_size=60),
    st.text(alphabet="ab:[]{}&*!-|>'\"#%@` \n\t", max_size=40).map(str.encode),
)


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=_TEXTS)
def test_a_configuration_file_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "colibri.yaml"
    path.write_bytes(data)
    try:
        found = read_config(path)
    except ConfigError as error:
        precise(error.message)
        return
    assert found.path == path
