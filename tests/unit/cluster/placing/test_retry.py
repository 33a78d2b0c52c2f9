from __future__ import annotations

from colibri.cluster.placing.retry import Retry


def test_waits_double_up_to_a_bound_and_success_starts_anew() -> None:
    now = [100.0]
    retry = Retry(0.5, 3.0, lambda: now[0])
    here, elsewhere = object(), object()
    assert retry.may(here)
    waits = []
    for _ in range(5):
        waits.append(retry.failed(here))
        assert not retry.may(here)
        now[0] += waits[-1]
        assert retry.may(here)
    assert waits == [0.5, 1.0, 2.0, 3.0, 3.0]
    retry.succeeded()
    assert retry.failed(here) == 0.5
    assert retry.may(elsewhere)
    assert retry.may(here, elsewhere)
    assert not retry.may(here)
