"""Requests without end while something happens to a deployment, each compared with what one process answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from colibri.deployment.running import Deployment
from tests.support.clusters import PROMPT, answer
from tests.support.tiny_engine import Answer

_WAIT_S = 60.0


def prompts(count: int) -> list[tuple[int, ...]]:
    return [(*PROMPT, 20 + index) for index in range(count)]


def expected_answers(oracle: Deployment, count: int, max_tokens: int) -> list[Answer]:
    """oracle: a deployment without workers."""
    return [answer(oracle, prompt, max_tokens) for prompt in prompts(count)]


class Traffic:
    """One thread per expected answer asks for it again and again. Leaving the context raises what any of them
    failed with, and fails where nothing was answered."""

    def __init__(self, deployment: Deployment, expected: Sequence[Answer]) -> None:
        self._deployment = deployment
        self._expected = expected
        self._stop = threading.Event()
        self._asked = prompts(len(expected))
        self.done = [0] * len(expected)
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(index,), name=f"traffic-{index}", daemon=True)
            for index in range(len(expected))
        ]

    def wait(self, more: int = 1, timeout_s: float = _WAIT_S) -> None:
        """Until every thread has had `more` further answers."""
        wanted = [done + more for done in self.done]
        pause = threading.Event()
        for _ in range(int(timeout_s / 0.01)):
            if self.errors or all(done >= want for done, want in zip(self.done, wanted, strict=True)):
                break
            pause.wait(0.01)
        self.check()
        assert all(done >= want for done, want in zip(self.done, wanted, strict=True)), "no answers any more"

    def check(self) -> None:
        if self.errors:
            raise self.errors[0]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_WAIT_S)
        if kind is None:
            self.check()
            assert not any(thread.is_alive() for thread in self._threads)
            assert all(self.done), self.done

    def _ask(self, index: int) -> None:
        expected = self._expected[index]
        try:
            while not self._stop.is_set():
                found = answer(self._deployment, self._asked[index], len(expected.ids))
                assert found.ids == expected.ids
                assert found.receipts == expected.receipts
                self.done[index] += 1
        except BaseException as error:
            self.errors.append(error)
