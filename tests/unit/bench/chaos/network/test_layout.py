"""Names and addresses that nobody else has."""

from __future__ import annotations

import pytest

from colibri.bench.chaos.network.layout import lay_out
from colibri.errors import ConfigError


def test_each_worker_has_its_own() -> None:
    layout = lay_out("ab12", ["w0", "w1", "w2"], [])
    assert layout.gateway == "10.213.0.1"
    assert [place.address for place in layout.places] == ["10.213.0.10", "10.213.0.11", "10.213.0.12"]
    names = [layout.hub, *(p.device for p in layout.places), *(p.namespace for p in layout.places)]
    assert len(set(names)) == len(names)
    assert all(len(place.device) <= 15 for place in layout.places)
    assert layout.place("w1").address == "10.213.0.11"
    with pytest.raises(ConfigError, match="w0, w1, w2"):
        layout.place("w9")


def test_taken_networks_are_left_alone() -> None:
    taken = ["default", "10.213.0.0/24", "10.213.1.7", "fe80::/64", "", "10.213.2.0/23"]
    assert lay_out("t", ["w0"], taken).gateway == "10.213.4.1"
    with pytest.raises(ConfigError, match="a free /24"):
        lay_out("t", ["w0"], ["10.0.0.0/8"])


@pytest.mark.parametrize("tag", ["", "abcde", "a-b"])
def test_bad_tags(tag: str) -> None:
    with pytest.raises(ConfigError, match="tag"):
        lay_out(tag, ["w0"], [])
