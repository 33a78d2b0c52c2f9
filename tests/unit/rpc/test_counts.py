"""Elements counted in a message's bytes: as many as protobuf would make, and never more work than the bound."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from colibri.errors import InvalidInput
from colibri.rpc.counts import MOST_FIELDS, Counts, Most
from colibri.v1 import generation_pb2 as pb

PATHS = ("chat.messages", "token_ids.ids", "stopping.stop", "stopping.stop_ids", "resume.generated_ids")


def refused(data: bytes, **most: int) -> str:
    """The refusal; empty: none. most: by path, with _ for the dot before the field."""
    bounds = {path.replace("__", "."): Most(count, "things") for path, count in most.items()}
    try:
        Counts(pb.GenerateRequest.DESCRIPTOR, bounds).check(data)
    except InvalidInput as error:
        return error.message
    return ""


def message(counts: tuple[int, ...]) -> pb.GenerateRequest:
    """Of so many elements at each of PATHS."""
    found = pb.GenerateRequest(request_id="r", priority=3)
    chat, ids, stops, stop_ids, resumed = counts
    if chat:
        found.chat.messages.extend(pb.ChatMessage(role="user", content="x" * 300) for _ in range(chat))
    elif ids:
        found.token_ids.ids.extend([1 << (at % 32) for at in range(ids)])
    found.stopping.stop.extend(["stop"] * stops)
    found.stopping.stop_ids.extend([300] * stop_ids)
    found.resume.generated_ids.extend([1 << 31] * resumed)
    return found


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("count", [1, 5, 300])
def test_the_bound_is_exact(path: str, count: int) -> None:
    counts = tuple(count if each == path else 0 for each in PATHS)
    data = message(counts).SerializeToString()
    key = path.replace(".", "__")
    assert refused(data, **{key: count}) == ""
    got = "more than" if path in ("chat.messages", "stopping.stop") else str(count)
    assert refused(data, **{key: count - 1}).startswith(
        f"{path}: expected at most {count - 1} things, got {got}"
    )


def test_elements_of_a_field_that_comes_again_are_counted_together() -> None:
    part = message((0, 3, 0, 0, 0)).SerializeToString()
    assert len(pb.GenerateRequest.FromString(part * 4).token_ids.ids) == 12
    assert refused(part * 4, token_ids__ids=12) == ""
    assert refused(part * 4, token_ids__ids=11) == "token_ids.ids: expected at most 11 things, got 12 things"


def test_ids_that_are_not_packed_are_counted() -> None:
    data = b"\x1a\x06" + b"\x08\x05" * 3
    assert list(pb.GenerateRequest.FromString(data).token_ids.ids) == [5] * 3
    assert refused(data, token_ids__ids=3) == ""
    assert refused(data, token_ids__ids=2).endswith("more than 2 things")


def test_a_group_hides_nothing() -> None:
    """An unknown group, with a field in it that looks like a chat, then a chat."""
    chat = message((4, 0, 0, 0, 0)).SerializeToString()
    group = b"\xa3\x06" + chat + b"\xa4\x06"
    assert len(pb.GenerateRequest.FromString(group + chat).chat.messages) == 4
    assert refused(group + chat, chat__messages=4) == ""
    assert refused(group + chat, chat__messages=3).endswith("more than 3 things")


def test_unknown_fields_are_bounded() -> None:
    field = b"\x98\x06\x01"
    assert refused(field * MOST_FIELDS, chat__messages=1) == ""
    assert refused(field * (MOST_FIELDS + 1), chat__messages=1) == (
        f"request: expected at most {MOST_FIELDS} fields, got more"
    )


def test_a_path_that_does_not_exist() -> None:
    with pytest.raises(KeyError):
        Counts(pb.GenerateRequest.DESCRIPTOR, {"chat.letters": Most(1, "letters")})


def test_what_protobuf_reads_is_counted_as_it_reads_it() -> None:
    """Whole, cut and mutated messages: nothing that protobuf takes holds more elements than were counted."""
    draw = random.Random(7)
    taken = 0
    for _ in range(4000):
        data = bytearray(message(tuple(draw.choice((0, 1, 2, 9)) for _ in PATHS)).SerializeToString())
        for _ in range(draw.randrange(3)):
            if data:
                data[draw.randrange(len(data))] = draw.randrange(256)
        if draw.random() < 0.2:
            del data[draw.randrange(len(data) + 1) :]
        raw = bytes(data)
        bounds = {path.replace(".", "__"): draw.choice((0, 1, 2, 8)) for path in PATHS}
        refusal = refused(raw, **bounds)
        try:
            read = pb.GenerateRequest.FromString(raw)
        except DecodeError:
            continue
        taken += 1
        if not refusal:
            for key, most in bounds.items():
                part, name = key.split("__")
                assert len(getattr(getattr(read, part), name)) <= most, (raw, key)
    assert taken > 1000
