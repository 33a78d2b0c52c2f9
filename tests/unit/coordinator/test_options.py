"""Options of a request in the engine: each does what it says, to the bit, and survives a resume anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colibri.coordinator.decoder import DecoderStack
from colibri.coordinator.engine import EngineOptions
from colibri.coordinator.penalties import Penalties, penalised
from colibri.coordinator.receipts import next_receipt
from colibri.coordinator.request import GenerationRequest
from colibri.errors import ColibriError, InvalidInput, WorkerLost
from colibri.generation import Finished, FinishReason, Prompt, Tokens
from colibri.kernels.api import F32
from tests.support.tiny_engine import Answer, TinyModel, Turnstile, ask, idle, read, read_all

OPTIONS = EngineOptions(max_batch_rows=64, prefill_chunk=16, kv_page=8, kv_tokens=2048, max_running=8)
#: Letters of the tokenizer's alphabet, so that answers have text.
PROMPT = [1, *range(30, 60)]
MIX: dict[str, Any] = {"temperature": 1.2, "top_k": 60, "top_p": 0.95, "seed": 11}


def generate(model: TinyModel, request: GenerationRequest, options: EngineOptions = OPTIONS) -> Answer:
    with model.engine(options) as engine:
        answer = read(engine.submit(request))
        assert idle(engine)
    return answer


def greedy_logits(model: TinyModel, ids: list[int]) -> F32:
    """Raw logits [len(ids), vocab], out of the engine's own decoder."""
    rows: list[F32] = []

    class Spy(DecoderStack):
        def head(self, rows_: Any) -> F32:
            logits = super().head(rows_)
            rows.extend(logits.copy())
            return logits

    spy = Spy(model.stack.weights, model.backend)
    with model.engine(OPTIONS, stack=spy) as engine:
        read(engine.submit(ask([*ids, 1], 1, echo=True, logprobs=0)))
    return np.array(rows)


class TestPenalties:
    def test_greedy_tokens_are_those_of_penalised_logits(self, model: TinyModel) -> None:
        penalties = Penalties(1.4, 0.8, 0.3)
        answer = generate(model, ask(PROMPT, 12, penalties=penalties))
        logits = greedy_logits(model, PROMPT + answer.ids[:-1])[len(PROMPT) - 1 :]
        receipt = 0
        for at, row in enumerate(logits):
            before = answer.ids[:at]
            context = np.unique(np.array(PROMPT + before, np.uint32))
            own, counts = np.unique(np.array(before, np.uint32), return_counts=True)
            shaped = penalised(row, penalties, context, own, counts.astype(np.float32))
            assert answer.ids[at] == int(np.argmax(shaped))
            receipt = next_receipt(receipt, row, answer.ids[at])
            assert answer.receipts[at] == receipt, "receipts stay over the raw logits"

    @pytest.mark.parametrize(
        "penalties", [Penalties(repetition=5.0), Penalties(presence=2.0), Penalties(frequency=2.0)]
    )
    def test_each_changes_the_answer(self, model: TinyModel, penalties: Penalties) -> None:
        plain = generate(model, ask(PROMPT, 40))
        changed = generate(model, ask(PROMPT, 40, penalties=penalties))
        assert changed.ids != plain.ids
        assert len(set(changed.ids)) > len(set(plain.ids))


class TestLeastLength:
    def test_stop_ids_wait(self, model: TinyModel) -> None:
        free = generate(model, ask(PROMPT, 12))
        stop = free.ids[0]
        assert len(generate(model, ask(PROMPT, 12, stop_ids=[stop])).ids) == 1
        late = generate(model, ask(PROMPT, 12, stop_ids=[stop], min_tokens=6))
        assert stop not in late.ids[:6]
        assert late.end.reason is FinishReason.LENGTH or late.ids.index(stop) >= 6

    def test_stop_strings_wait(self, model: TinyModel) -> None:
        free = generate(model, ask(PROMPT, 40, **MIX))
        letter = next(c for c in free.text if c.isprintable())
        early = generate(model, ask(PROMPT, 40, stop=(letter,), **MIX))
        late = generate(model, ask(PROMPT, 40, stop=(letter,), min_tokens=40, **MIX))
        assert early.end.stop_string == letter
        assert late.ids == free.ids
        assert letter in late.text


class TestStopStrings:
    def test_every_piece_of_the_text_stops_it(self, model: TinyModel) -> None:
        free = generate(model, ask(PROMPT, 60, **MIX))
        assert free.end.reason is FinishReason.LENGTH
        for begin in range(0, len(free.text) - 3, 7):
            stop = free.text[begin : begin + 3]
            answer = generate(model, ask(PROMPT, 60, stop=(stop, "never said"), **MIX))
            assert answer.text == free.text[: free.text.index(stop)]
            assert (answer.end.reason, answer.end.stop_string, answer.end.stop_id) == (
                FinishReason.STOP,
                stop,
                None,
            )
            count = len(answer.ids)
            assert answer.ids == free.ids[:count]
            assert answer.receipts == free.receipts[:count]
            assert answer.end.usage.completion_tokens == count
            assert answer.end.receipt == free.receipts[count - 1]

    def test_a_stop_string_at_the_last_token_wins_over_length(self, model: TinyModel) -> None:
        free = generate(model, ask(PROMPT, 60, **MIX))
        answer = generate(model, ask(PROMPT, 60, stop=(free.text[5:8],), **MIX))
        again = generate(model, ask(PROMPT, len(answer.ids), stop=(free.text[5:8],), **MIX))
        assert again.end == answer.end
        assert again.end.reason is FinishReason.STOP


class TestLogprobs:
    def test_of_the_answer_and_of_the_prompt(self, model: TinyModel) -> None:
        """The prompt's come chunk by chunk; one longer run of the same tokens scores both."""
        plain = generate(model, ask(PROMPT, 20, **MIX))
        answer = generate(model, ask(PROMPT, 20, echo=True, logprobs=5, prompt_text="p", **MIX))
        assert (answer.ids, answer.receipts, answer.text) == (plain.ids, plain.receipts, plain.text)
        assert len(answer.logprobs) == 20
        assert answer.prompt is not None
        assert (answer.prompt.ids, answer.prompt.text) == (tuple(PROMPT), "p")
        assert answer.prompt.logprobs[0] is None
        whole = generate(model, ask(PROMPT + answer.ids, 1, echo=True, logprobs=5))
        assert whole.prompt is not None
        assert whole.prompt.logprobs == (*answer.prompt.logprobs, *answer.logprobs)

    def test_against_a_softmax_in_float64(self, model: TinyModel) -> None:
        answer = generate(model, ask(PROMPT, 1, echo=True, logprobs=3))
        assert answer.prompt is not None
        logits = greedy_logits(model, PROMPT[:-1]).astype(np.float64)
        truth = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        for row, found, token in zip(truth, answer.prompt.logprobs[1:], PROMPT[1:], strict=True):
            assert found is not None
            assert abs(found.logprob - row[token]) < 1e-5
            assert [each for each, _ in found.top] == np.argsort(-row, kind="stable")[:3].tolist()

    def test_chosen_token_alone(self, model: TinyModel) -> None:
        answer = generate(model, ask(PROMPT, 4, logprobs=0))
        assert [each.top for each in answer.logprobs] == [()] * 4
        assert all(each.logprob <= 0 for each in answer.logprobs)

    def test_raw_logits_whatever_chooses(self, model: TinyModel) -> None:
        shaped = generate(model, ask(PROMPT, 1, logprobs=20, penalties=Penalties(3.0, 2.0, 2.0), **MIX))
        plain = generate(model, ask(PROMPT, 1, logprobs=20))
        assert shaped.logprobs[0].top == plain.logprobs[0].top

    def test_choices_share_the_echo(self, model: TinyModel) -> None:
        with model.engine(OPTIONS) as engine:
            events = list(engine.submit(ask(PROMPT, 3, echo=True, logprobs=1, n=2, **MIX)).events())
        assert [isinstance(event, Prompt) for event in events[:3]] == [False, True, False]
        assert sum(isinstance(event, Prompt) for event in events) == 1
        assert {event.choice for event in events if isinstance(event, Tokens)} == {0, 1}

    @pytest.mark.parametrize("logprobs", [None, 2])
    def test_echo_of_one_token(self, model: TinyModel, logprobs: int | None) -> None:
        answer = generate(model, ask([5], 1, echo=True, logprobs=logprobs))
        assert answer.prompt == Prompt((5,), "", () if logprobs is None else (None,))

    @pytest.mark.parametrize(("scored_first", "lost"), [(False, 1), (True, 6), (True, 0), (False, 0)])
    def test_mates_that_drop_out_of_the_step_change_nothing(
        self, model: TinyModel, scored_first: bool, lost: int
    ) -> None:
        """One decode row, four rows of a plain prompt and five of a scored one, of which one row is lost."""

        class OneRowLost:
            def forward(self, layer, x, deadline=None, priority=0):  # type: ignore[no-untyped-def]
                result = model.router.forward(layer, x, deadline, priority)
                if layer == 0 and len(x) == 10:
                    return replace(result, failed={lost: WorkerLost("worker w2 is gone", peer="w2")})
                return result

        scored, plain = ask(PROMPT[:5], 4, echo=True, logprobs=3), ask([9, 8, 7, 6], 4)
        expected = generate(model, scored)
        turnstile = Turnstile(OneRowLost())
        with model.engine(OPTIONS, turnstile) as engine:
            decoding = engine.submit(ask([1], 3))
            turnstile.wait_step()
            handles = {}
            for request in (scored, plain) if scored_first else (plain, scored):
                handles[request.request_id] = engine.submit(request)
            turnstile.open()
            with pytest.raises(WorkerLost):
                read({0: decoding, 1: handles[plain.request_id], 6: handles[plain.request_id]}[lost])
            found = read(handles[scored.request_id])
        assert (found.prompt, found.logprobs) == (expected.prompt, expected.logprobs)
        assert found.receipts == expected.receipts

    def test_a_prompt_whose_logits_are_bad_fails_alone(self, model: TinyModel) -> None:
        class Poisoned(DecoderStack):
            def head(self, rows: Any) -> F32:
                logits = super().head(rows).copy()
                logits[1, 9] = np.nan
                return logits

        with model.engine(OPTIONS, stack=Poisoned(model.stack.weights, model.backend)) as engine:
            good = engine.submit(ask([1, 2, 3], 5))
            bad = engine.submit(ask([1, 2, 3], 5, echo=True, logprobs=1))
            with pytest.raises(ColibriError, match=r"no log-probabilities: logits\[1, 9\]"):
                read(bad)
            assert len(read(good).ids) == 5
            assert idle(engine)


#: Everything that an answer's next token, text or end depends on.
RESUMED: list[dict[str, Any]] = [
    {},
    MIX,
    {**MIX, "min_p": 0.1},
    {**MIX, "penalties": Penalties(1.3, 0.5, 0.2)},
    {"penalties": Penalties(frequency=0.5), "min_tokens": 12, "stop_ids": list(range(3, 40))},
    {**MIX, "min_tokens": 9, "stop": ("e", "ab")},
    {**MIX, "stop": ("\u0001never",), "logprobs": 2},
]


class TestResume:
    @pytest.mark.parametrize("options", RESUMED, ids=range(len(RESUMED)))
    def test_at_every_position(self, model: TinyModel, options: dict[str, Any]) -> None:
        """Text, receipts, log-probabilities, usage and end, the complete answer included."""
        options = dict(options)
        min_p = options.pop("min_p", 0.0)

        def request(**more: Any) -> GenerationRequest:
            made = ask(PROMPT, 16, **options, **more)
            return replace(made, sampling=replace(made.sampling, min_p=min_p, choice=2))

        with model.engine(OPTIONS) as engine:
            events = list(engine.submit(request()).events())
            pieces: dict[int, str] = {}
            whole = read(engine.submit(request()))
            for count in range(1, len(whole.ids) + 1):
                rest = read(
                    engine.submit(request(resumed=whole.ids[:count], receipt=whole.receipts[count - 1]))
                )
                assert rest.ids == whole.ids[count:]
                assert rest.receipts == whole.receipts[count:]
                assert rest.logprobs == whole.logprobs[count:]
                assert whole.text.endswith(rest.text)
                assert rest.end == whole.end
                pieces[count] = whole.text.removesuffix(rest.text) if rest.text else whole.text
            assert idle(engine)
        assert events[-1] == whole.end
        self.check_streamed_text(model, request(), whole, pieces)

    def check_streamed_text(
        self, model: TinyModel, request: GenerationRequest, whole: Answer, pieces: dict[int, str]
    ) -> None:
        """What a client holds after `count` tokens is just what the resumed answer does not say again."""
        with model.engine(OPTIONS) as engine:
            handle = engine.submit(request)
            text, count = "", 0
            for event in handle.events():
                if isinstance(event, Tokens) and event.ids:
                    text, count = text + event.text, count + len(event.ids)
                    assert text == pieces[count]
                elif isinstance(event, Finished):
                    assert count == len(whole.ids)

    def test_an_unfinished_answer_may_go_on_longer(self, model: TinyModel) -> None:
        whole = generate(model, ask(PROMPT, 30, **MIX))
        first = generate(model, ask(PROMPT, 10, **MIX))
        rest = generate(model, ask(PROMPT, 30, resumed=first.ids, receipt=first.receipts[-1], **MIX))
        assert first.ids + rest.ids == whole.ids
        assert first.streamed + rest.text == whole.text
        assert first.text.startswith(first.streamed)

    def test_nothing_follows_a_stop_string(self, model: TinyModel) -> None:
        ids = model.tokenizer.encode("ab.cd", add_special=False)
        with model.engine(OPTIONS) as engine:
            with pytest.raises(
                InvalidInput, match=r"resume.generated_ids\[3\]: expected nothing behind the stop"
            ):
                engine.submit(ask(PROMPT, 16, resumed=ids, receipt=1, stop=(".",)))
            complete = read(engine.submit(ask(PROMPT, 16, resumed=ids[:3], receipt=9, stop=(".",))))
            assert (complete.ids, complete.end.stop_string, complete.end.receipt) == ([], ".", 9)
            assert complete.end.usage.completion_tokens == 3
            assert engine.stats().steps == 0

    def test_echo_is_not_repeated(self, model: TinyModel) -> None:
        whole = generate(model, ask(PROMPT, 5, echo=True, logprobs=1))
        rest = generate(
            model, ask(PROMPT, 5, echo=True, logprobs=1, resumed=whole.ids[:2], receipt=whole.receipts[1])
        )
        assert rest.prompt is None
        assert rest.logprobs == whole.logprobs[2:]

    def test_a_choice_of_many(self, model: TinyModel) -> None:
        with model.engine(OPTIONS) as engine:
            whole = read_all(engine.submit(ask(PROMPT, 8, n=3, **MIX)))
            for index, answer in enumerate(whole):
                resumed = ask(PROMPT, 8, resumed=answer.ids[:3], receipt=answer.receipts[2], **MIX)
                resumed = replace(resumed, sampling=replace(resumed.sampling, choice=index))
                rest = read(engine.submit(resumed))
                assert (rest.receipts, rest.end) == (answer.receipts[3:], answer.end)


def test_options_do_not_touch_their_mates(model: TinyModel) -> None:
    """Requests with everything on, beside plain ones."""
    plain = [ask([1, 5 + at], 12, **MIX) for at in range(3)]
    with model.engine(OPTIONS) as engine:
        alone = [read(engine.submit(replace(each, request_id=f"alone{at}"))) for at, each in enumerate(plain)]
        heavy = [
            engine.submit(
                ask(
                    PROMPT,
                    12,
                    echo=True,
                    logprobs=5,
                    penalties=Penalties(1.2, 0.1, 0.1),
                    stop=("q",),
                    n=2,
                    **MIX,
                )
            )
            for _ in range(2)
        ]
        found = [read(each) for each in [engine.submit(each) for each in plain]]
        for handle in heavy:
            assert len(read_all(handle)) == 2
    assert [(a.receipts, a.text) for a in found] == [(a.receipts, a.text) for a in alone]
