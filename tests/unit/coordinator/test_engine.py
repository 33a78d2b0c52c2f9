from __future__ import annotations

from tests.support.tiny_engine import TinyModel, ask, read


def test_one(model: TinyModel) -> None:
    with model.engine() as engine:
        answer = read(engine.submit(ask([1, 5, 9, 30], 12)))
        print(answer, engine.stats())
    assert len(answer.ids) == 12
