"""Templates in a process of their own: the same text, a bound on time and memory, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from colibri.deadline import Deadline
from colibri.errors import Busy, CheckpointError, ColibriError, DeadlineExpired, InvalidInput
from colibri.models.chat_renderer import ChatRenderer, load_chat_renderer
from colibri.models.confined.template import ChatTemplate
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello é 👩🏽‍🚀"}]
SOURCE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
#: Loops for ever when the first message says so.
SLOW = (
    "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% elif messages[0].content == 'power' %}"
    "{% set x = 9 ** (9 ** (messages[0].content|length + 4)) %}"
    "{% elif messages[0].content == 'memory' %}{% set x = 'x' * 10 ** 12 %}{% endif %}fine"
)

Make = Callable[..., ChatRenderer]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ChatRenderer] = []

    def renderer(source: str, limit_s: float = 0.3) -> ChatRenderer:
        made.append(ChatRenderer(source, bos_text="<s>", eos_text="</s>", limit_s=limit_s))
        return made[-1]

    yield renderer
    for each in made:
        each.close()


def says(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("add", [True, False])
def test_the_same_text_as_in_this_process(make: Make, add: bool) -> None:
    renderer = make(SOURCE, limit_s=5.0)
    here = ChatTemplate(SOURCE, bos_text="<s>", eos_text="</s>")
    for messages in (HELLO, HELLO * 50, says("x" * (1 << 20)), says("")):
        assert renderer.render(messages, add) == here.render(messages, add)


@pytest.mark.parametrize("content", ["loop", "power"])
def test_a_chat_that_computes_for_ever_is_cut_off(make: Make, content: str) -> None:
    """Whatever it is in: a loop, or one operation that no interpreter interrupts. The next chat is served."""
    renderer = make(SLOW)
    begun = time.monotonic()
    with pytest.raises(
        InvalidInput, match=r"chat.messages: expected what the chat template renders within 0.3 s"
    ):
        renderer.render(says(content))
    assert time.monotonic() - begun < 30
    assert renderer.render(HELLO) == "fine"


def test_a_chat_that_wants_all_memory_is_refused(make: Make) -> None:
    renderer = make(SLOW)
    with pytest.raises(
        InvalidInput, match=r"chat.messages: expected what the chat template accepts, .*MemoryError"
    ):
        renderer.render(says("memory"))
    assert renderer.render(HELLO) == "fine"


def test_what_the_template_refuses_comes_in_its_words(make: Make) -> None:
    renderer = make("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(
        InvalidInput, match=r"^chat.messages: expected .* got its error: roles must alternate$"
    ):
        renderer.render(HELLO)
    with pytest.raises(InvalidInput, match=r"^chat.messages: expected 1 to 16384 messages, got 0$"):
        renderer.render([])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "expected valid Jinja, got the error"),
        ("{{ 9 ** (9 ** 9) }}", "expected one that compiles within 0.3 s, got no end"),
    ],
)
def test_a_template_that_does_not_compile(make: Make, source: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        make(source)


def test_a_deadline_is_kept(make: Make) -> None:
    renderer = make(SLOW, limit_s=10.0)
    begun = time.monotonic()
    with pytest.raises(DeadlineExpired):
        renderer.render(says("loop"), True, Deadline.after(0.2))
    assert time.monotonic() - begun < 30
    assert renderer.render(HELLO) == "fine"


def test_others_wait_no_longer_than_they_have(make: Make) -> None:
    renderer = make(SLOW, limit_s=5.0)

    def loop() -> None:
        with contextlib.suppress(ColibriError):
            renderer.render(says("loop"))

    slow = threading.Thread(target=loop)
    slow.start()
    time.sleep(0.3)
    with pytest.raises(Busy) as caught:
        renderer.render(HELLO, True, Deadline.after(0.2))
    assert caught.value.retryable
    until = time.monotonic() + 60
    while slow.is_alive() and time.monotonic() < until:  # it is asked once more
        for pid in renderer.pids:
            os.kill(pid, signal.SIGKILL)
        slow.join(0.1)
    assert not slow.is_alive()
    assert renderer.render(HELLO) == "fine"


def test_a_process_that_was_killed_is_replaced(make: Make) -> None:
    renderer = make(SOURCE)
    first = renderer.render(HELLO)
    [pid] = renderer.pids
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 20
    while " Z " not in Path(f"/proc/{pid}/stat").read_text() and time.monotonic() < until:
        time.sleep(0.01)
    assert renderer.render(HELLO) == first
    assert renderer.pids != [pid]


def test_a_chat_whose_process_is_killed_is_asked_once_more(make: Make) -> None:
    """As the kernel does for want of memory, which is no fault of the chat."""
    renderer = make(SOURCE)
    first = renderer.render(HELLO)
    [pid] = renderer.pids
    os.kill(pid, signal.SIGSTOP)
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(renderer.render(HELLO))
        except ColibriError as error:
            found.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until = time.monotonic() + 20
    while not renderer._confined._short._lock.locked() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    asking.join(60)
    assert found == [first]


def test_closed(make: Make) -> None:
    renderer = make(SOURCE)
    [pid] = renderer.pids
    renderer.close()
    assert not Path(f"/proc/{pid}").exists()
    assert renderer.pids == []
    with pytest.raises(ColibriError, match="closed"):
        renderer.render(HELLO)


def test_loading(tmp_path: Path) -> None:
    write_plain_tokenizer(tmp_path, 300, 64)
    tokenizer = Tokenizer.load(tmp_path)
    assert load_chat_renderer(tmp_path, tokenizer) is None
    (tmp_path / "chat_template.jinja").write_text(SOURCE)
    renderer = load_chat_renderer(tmp_path, tokenizer)
    assert renderer is not None
    assert renderer.render(says("x")) == "<s>[user] x</s>[assistant]"
    renderer.close()
