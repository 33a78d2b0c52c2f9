"""Hypothesis strategies: requests and configurations that are almost right, in any number of ways."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from colibri.v1 import generation_pb2 as pb

U32, U64 = (1 << 32) - 1, (1 << 64) - 1
#: Around every bound that the proto names, and far beyond.
uint32 = st.one_of(st.integers(0, 20), st.sampled_from([63, 64, 65, 299, 300, 511, 512, 1000, 1001, U32]))
uint64 = st.one_of(st.integers(0, 3), st.sampled_from([1 << 63, U64]))
floats = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, -2.0, 100.0, 1e-6, 1e30, float("nan"), float("inf")]),
)
texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "w1 w2", "<s>", "</s>", "\0", "\u202e", "\U0001f426" * 70, "a" * 257, "\n", " "]),
)
ids = st.lists(uint32, max_size=6)


def message(kind: type[Any], required: dict[str, Any], **optional: Any) -> st.SearchStrategy[Any]:
    """Messages of a type: each optional field is set or not."""
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: kind(**values))


chats = message(
    pb.Chat,
    {
        "messages": st.lists(
            message(
                pb.ChatMessage,
                {},
                role=st.sampled_from(["user", "system", "robot", ""]) | texts,
                content=texts,
            ),
            max_size=3,
        )
    },
    add_generation_prompt=st.booleans(),
)
prompts = st.one_of(
    st.just({}),
    texts.map(lambda text: {"text": text}),
    ids.map(lambda found: {"token_ids": pb.TokenIds(ids=found)}),
    st.integers(1, 600).map(lambda size: {"token_ids": pb.TokenIds(ids=[7] * size)}),
    chats.map(lambda chat: {"chat": chat}),
)
sampling = message(
    pb.Sampling,
    {},
    temperature=floats,
    top_p=floats,
    top_k=uint32,
    seed=uint64,
    min_p=floats,
    repetition_penalty=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
)
stopping = message(
    pb.Stopping,
    {"max_tokens": st.integers(1, 6) | uint32},
    stop_ids=ids | st.just([1] * 65),
    ignore_eos=st.booleans(),
    stop=st.lists(texts, max_size=3) | st.just(["a"] * 17),
    min_tokens=st.integers(0, 3) | uint32,
)
resume = message(pb.Resume, {}, generated_ids=ids, receipt=uint64, choice=st.integers(0, 3) | uint32)


@st.composite
def requests(draw: st.DrawFn) -> pb.GenerateRequest:
    """A GenerateRequest in which any field may be wrong; every second one has good sampling and stopping, so that
    answers are computed, too."""
    fields: dict[str, Any] = dict(draw(prompts))
    fields["stopping"] = draw(st.just(pb.Stopping(max_tokens=3)) | stopping)
    optional = {
        "request_id": texts,
        "sampling": st.just(pb.Sampling(temperature=1, seed=7)) | sampling,
        "resume": resume,
        "priority": uint32,
        "n": st.integers(0, 3) | uint32,
        "echo": st.booleans(),
        "logprobs": st.integers(0, 3) | uint32,
    }
    for name, strategy in optional.items():
        if draw(st.integers(0, 3)) == 0:
            fields[name] = draw(strategy)
    return pb.GenerateRequest(**fields)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.sampled_from([1 << 31, 1 << 63, 1 << 64, 10**40])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
