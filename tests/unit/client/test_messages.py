"""What the client makes of replies that no server of ours sends."""

from __future__ import annotations

import pytest

from colibri.client import Client
from colibri.client.messages import to_event
from colibri.errors import ConfigError, FrameError
from colibri.v1 import generation_pb2 as pb


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (pb.GenerateReply(), "host:1: a reply without an event"),
        (pb.GenerateReply(finished=pb.Finished()), "host:1: finish reason 0 is unknown"),
    ],
)
def test_strange_replies(reply: pb.GenerateReply, message: str) -> None:
    with pytest.raises(FrameError, match=message) as caught:
        to_event(reply, "host:1")
    assert caught.value.peer == "host:1"


def test_targets_are_checked() -> None:
    with pytest.raises(ConfigError, match="target: expected unix: and an absolute path"):
        Client("unix:relative")
