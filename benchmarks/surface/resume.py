"""Ten generations with every option, each resumed at every position."""

from __future__ import annotations

from benchmarks.surface.engines import Answer, answers, ask, deployed, ids
from benchmarks.table import Line, Outcome
from colibri.deployment.running import Deployment
from colibri.generation import Tokens
from colibri.v1 import generation_pb2 as pb

TOKENS = 40


def requests() -> list[pb.GenerateRequest]:
    """Greedy, sampled, penalised, with stop strings, a least length, stop ids, log-probabilities, another choice."""

    def request(
        at: int, *, sampling: dict[str, float] | None = None, **stopping: object
    ) -> pb.GenerateRequest:
        made = pb.GenerateRequest(
            token_ids=ids([1, *range(20 + 3 * at, 60 + 7 * at)]),
            sampling=pb.Sampling(seed=at, **(sampling or {})),  # type: ignore[arg-type]
            stopping=pb.Stopping(max_tokens=TOKENS, ignore_eos=True, **stopping),  # type: ignore[arg-type]
            logprobs=3 if at % 2 else None,
        )
        made.resume.choice = at % 3
        return made

    hot = {"temperature": 1.3}
    return [
        request(0),
        request(1, sampling={"repetition_penalty": 1.4}),
        request(2, sampling={"presence_penalty": 1.5, "frequency_penalty": 0.7}),
        request(3, sampling=hot),
        request(4, sampling={**hot, "top_k": 40, "top_p": 0.9, "min_p": 0.02}),
        request(5, sampling={**hot, "repetition_penalty": 1.2, "frequency_penalty": -0.4}),
        request(6, sampling=hot, stop=["w1", "an"], min_tokens=15),
        request(7, sampling=hot, stop_ids=list(range(3, 60)), min_tokens=20),
        request(8, sampling=hot, stop=["never said, but held back for"]),
        request(9, sampling={**hot, "presence_penalty": -1.0}, stop=["w23", "w4"], min_tokens=3),
    ]


def measure() -> Outcome:
    """Ids, receipts, text behind what was streamed, log-probabilities, usage, reason and end must be the same."""
    positions, wrong = 0, list[str]()
    lengths = []
    with deployed() as (_, deployment):
        for at, message in enumerate(requests()):
            [whole] = answers(deployment.engine, ask(deployment, message))
            lengths.append(len(whole.ids))
            rests = [_resumed(deployment, message, whole, count) for count in range(len(whole.ids) + 1)]
            streamed = _streamed(deployment, message)
            for count, rest in enumerate(rests):
                positions += 1
                if not _goes_on(whole, rest, count, streamed.get(count)):
                    wrong.append(f"generation {at} after {count} tokens")
    return Outcome(
        f"{positions - len(wrong)} of {positions} positions identical, {len(lengths)} generations",
        not wrong,
        "",
        {"wrong": wrong, "tokens": lengths},
    )


def _resumed(deployment: Deployment, message: pb.GenerateRequest, whole: Answer, count: int) -> Answer:
    resumed = pb.GenerateRequest()
    resumed.CopyFrom(message)
    resumed.resume.generated_ids.extend(whole.ids[:count])
    resumed.resume.receipt = whole.receipts[count - 1] if count else 0
    [rest] = answers(deployment.engine, ask(deployment, resumed))
    return rest


def _streamed(deployment: Deployment, message: pb.GenerateRequest) -> dict[int, str]:
    """Tokens that a client had at some moment of its stream -> the text that it had then."""
    found = {0: ""}
    text, count = "", 0
    for event in deployment.engine.submit(ask(deployment, message)).events():
        if isinstance(event, Tokens) and event.ids:
            text, count = text + event.text, count + len(event.ids)
            found[count] = text
    return found


def _goes_on(whole: Answer, rest: Answer, count: int, streamed: str | None) -> bool:
    """`streamed`: None where no client stood just there; the text must then end as the whole one does."""
    return (
        rest.ids == whole.ids[count:]
        and rest.receipts == whole.receipts[count:]
        and rest.logprobs == whole.logprobs[count:]
        and rest.finished == whole.finished
        and whole.text.endswith(rest.text)
        and (streamed is None or streamed + rest.text == whole.text)
    )


def lines() -> list[Line]:
    return [
        Line(
            "resume",
            "resume at every position of 10 generations",
            "identical continuation and receipts",
            measure,
        )
    ]
