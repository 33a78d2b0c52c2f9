"""Commands of an operator: followed, bounded, told with what they said."""

from __future__ import annotations

import time

import pytest

from colibri.cluster.ray.remote import follow, ray_command
from colibri.errors import ColibriError, DeadlineExpired

SAYS = "echo one; echo two >&2; printf three"


def test_lines_come_from_both_streams() -> None:
    heard: list[str] = []
    out = follow(["sh", "-c", SAYS], 10.0, "it", heard=heard.append)
    assert out == "one\nthree"
    assert sorted(heard) == ["one", "three", "two"]


def test_a_failure_tells_the_last_lines() -> None:
    with pytest.raises(ColibriError, match=r"it failed \(exit code 7\): .*one") as caught:
        follow(["sh", "-c", f"{SAYS}; exit 7"], 10.0, "it")
    assert "two" in caught.value.message


def test_what_does_not_end_is_ended() -> None:
    begun = time.monotonic()
    with pytest.raises(DeadlineExpired, match=r"it did not end within 0.3 s: .*begun"):
        follow(["sh", "-c", "echo begun; exec sleep 30"], 0.3, "it")
    assert time.monotonic() - begun < 10.0


def test_what_closes_its_output_and_goes_on_is_ended_too() -> None:
    with pytest.raises(DeadlineExpired):
        follow(["sh", "-c", "exec > /dev/null 2>&1; exec sleep 30"], 0.3, "it")


def test_no_such_program() -> None:
    with pytest.raises(ColibriError, match="it: /no/such/program: No such file"):
        follow(["/no/such/program"], 1.0, "it")


def test_rays_own_program_is_that_beside_this_python() -> None:
    assert ray_command("up", "-y")[1:] == ["up", "-y"]
    assert ray_command("up")[0].endswith("ray")
