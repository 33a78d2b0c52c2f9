"""Talk with a model, on local workers, in this process, or on a running server."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from colibri.cli import request_options
from colibri.cli.parser import plain_text
from colibri.cli.terminal import say, settle, shown

if TYPE_CHECKING:
    from colibri.cli.sources import Source
    from colibri.client import Answers
    from colibri.generation import ChatMessage

ABOUT = """
Each line is a message; the whole conversation goes along with it, under the checkpoint's chat template.

  Ctrl-C  stops the answer, which stays in the conversation as far as it came; a second one leaves
  Ctrl-D  leaves
  /reset  begins a new conversation
  /exit   leaves
"""

_PROMPT = "> "
_AGAIN_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    request_options.add_where(parser)
    parser.add_argument(
        "--system",
        type=plain_text,
        default=argparse.SUPPRESS,
        metavar="TEXT",
        help="the system message that comes first",
    )
    request_options.add_sampling(parser)
    request_options.add_stopping(parser)
    request_options.add_record(parser)


def run(args: argparse.Namespace) -> int:
    from colibri.cli.sources import open_source
    from colibri.deployment.phases import Phases, process_age_s

    with open_source(args, Phases(process_age_s())) as source, Interrupts() as interrupts:
        for line in source.about():
            say(line)
        Conversation(source, args, interrupts).run()
    return 0


class Interrupts:
    """Ctrl-C: the first one stops the answer under way, or is told at the prompt; the next one leaves, by
    KeyboardInterrupt, unless a message came in between. The handler runs on the main thread between two of its
    instructions, so it takes no lock: another thread asks the source to abort.
    """

    def __init__(self) -> None:
        self._count = 0
        self._running: tuple[Source, str] | None = None
        self._before: object = None

    def message(self) -> None:
        """A new message: the count begins anew."""
        self._count = 0

    @contextlib.contextmanager
    def aborting(self, source: Source, request_id: str) -> Iterator[None]:
        """Inside, Ctrl-C aborts this request, also one that the source does not know yet."""
        self._running = (source, request_id)
        try:
            yield
        finally:
            self._running = None

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1 or self._running is None:
            raise KeyboardInterrupt
        threading.Thread(target=self._abort, args=(self._running,), daemon=True).start()

    def _abort(self, running: tuple[Source, str]) -> None:
        from colibri.errors import ColibriError

        source, request_id = running
        try:
            while self._running is running and not source.abort(request_id):
                time.sleep(_AGAIN_S)  # it is still on its way there, or its end is on its way here
        except ColibriError as error:
            say(f"colibri chat: the answer cannot be stopped: {error}")

    @property
    def leaving(self) -> bool:
        """A second one in a row."""
        return self._count > 1


class Conversation:
    """The messages so far, and the loop that adds to them."""

    def __init__(self, source: Source, args: argparse.Namespace, interrupts: Interrupts) -> None:
        self._source = source
        self._args = args
        self._interrupts = interrupts
        self._messages: list[ChatMessage] = []
        self._reset()

    def run(self) -> None:
        """Until /exit, the end of the input, or KeyboardInterrupt."""
        terminal = sys.stdin.isatty()
        if terminal:
            import readline  # noqa: F401 - input() then has lines that can be edited
        while True:
            settle()
            try:
                line = input(_PROMPT if terminal else "")
            except EOFError:
                return
            except UnicodeDecodeError as error:
                say(
                    f"colibri chat: expected text in {error.encoding}, got byte {error.object[error.start]:02x}"
                )
                continue
            except KeyboardInterrupt:
                if self._interrupts.leaving:
                    raise
                say("\n(Ctrl-C again, or Ctrl-D, leaves)")
                continue
            self._interrupts.message()
            if line.strip() == "/exit":
                return
            if line.strip() == "/reset":
                self._reset()
            elif line.strip():
                self._ask(line)

    def _reset(self) -> None:
        from colibri.generation import ChatMessage

        system = [ChatMessage("system", self._args.system)] if hasattr(self._args, "system") else []
        self._messages = system

    def _ask(self, line: str) -> None:
        """An answer that fails takes its message back; the conversation goes on."""
        from colibri.errors import ColibriError
        from colibri.generation import ChatMessage, FinishReason

        asked = [*self._messages, ChatMessage("user", line)]
        try:
            answers = self._stream(asked)
        except ColibriError as error:
            print(flush=True)
            say(f"colibri chat: {error}")
            return
        only = answers.only()
        if only.finished is not None and only.finished.reason is FinishReason.ABORT:
            print(" [stopped]", end="")
        elif only.finished is not None and only.finished.reason is FinishReason.LENGTH:
            print(" [longest answer]", end="")
        print(flush=True)
        self._messages = [*asked, ChatMessage("assistant", only.text)]

    def _stream(self, messages: list[ChatMessage]) -> Answers:
        from colibri.cli.answer import keep
        from colibri.client import Answers
        from colibri.client.messages import to_request
        from colibri.generation import Chat, Tokens

        request = to_request(Chat(tuple(messages)), **request_options.request_options(self._args))
        answers = Answers()
        with (
            self._interrupts.aborting(self._source, request.request_id),
            contextlib.closing(self._source.start(request, self._args.timeout)) as events,
        ):
            for event in events:
                answers.take(event)
                if isinstance(event, Tokens):
                    print(shown(event.text), end="", flush=True)
        if hasattr(self._args, "record"):
            keep(self._source, request, answers, self._args)
        return answers
