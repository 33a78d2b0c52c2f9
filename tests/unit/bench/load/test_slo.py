from __future__ import annotations

import pytest

from colibri.bench.load.record import Failure
from colibri.bench.load.slo import Slo, meets_all, parse_slo, parse_slos
from colibri.errors import ConfigError
from tests.support.load_records import record

#: ttft 300 ms, gaps 100 and 200 ms, tpot 150 ms, e2el 600 ms.
RECORD = record(token_times=[100.3, 100.4, 100.6])


def test_parsed() -> None:
    assert parse_slo("ttft:200") == Slo("ttft", 0.2)
    assert parse_slos(["itl:50", "e2el:2000.5"]) == (Slo("itl", 0.05), Slo("e2el", 2.0005))
    assert parse_slos(["itl:50 e2el:2000.5"]) == parse_slos(["itl:50", "e2el:2000.5"])
    assert parse_slos([]) == ()


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "ttft:inf", "ttl:5", "200"]
)
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="SLO: expected METRIC:MILLISECONDS"):
        parse_slo(text)


def test_twice_refused() -> None:
    with pytest.raises(ConfigError, match="one bound of itl"):
        parse_slos(["itl:50", "itl:60"])


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        ("ttft:301", True),
        ("ttft:299", False),
        ("itl:201", True),
        ("itl:199", False),  # every gap, not their mean
        ("tpot:151", True),
        ("tpot:149", False),
        ("e2el:601", True),
        ("e2el:599", False),
    ],
)
def test_bounds(slo: str, met: bool) -> None:
    assert parse_slo(slo).met(RECORD) is met


def test_all_must_hold() -> None:
    assert meets_all(RECORD, parse_slos(["ttft:301", "itl:201"]))
    assert not meets_all(RECORD, parse_slos(["ttft:301", "itl:199"]))


def test_failures_meet_nothing_and_short_answers_have_no_gap() -> None:
    failed = record(token_times=[100.3], failure=Failure("WorkerLost", ""))
    assert not meets_all(failed, parse_slos(["ttft:1000"]))
    assert not meets_all(failed, ())
    assert meets_all(record(token_times=[100.3]), parse_slos(["ttft:1000", "itl:1", "tpot:1"]))
