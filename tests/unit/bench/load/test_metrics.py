"""Metrics against values computed by hand."""

from __future__ import annotations

import pytest

from colibri.bench.load.distribution import distribution
from colibri.bench.load.metrics import measure
from colibri.bench.load.record import BOUND_EXCEEDED, STOPPED, Failure, Gap
from colibri.bench.load.slo import Slo
from tests.support.load_records import record, run_result

# Scheduled at 100.0; first token 300 ms later; then gaps of 100 ms and 200 ms; two tokens at once at the end.
WHOLE = record(0, token_times=[100.3, 100.4, 100.6, 100.6], ended=100.65)
# Sent 500 ms late: that counts.
LATE = record(1, scheduled=101.0, sent=101.5, token_times=[101.9, 102.0], ended=102.0)
LOST = record(2, scheduled=102.0, token_times=[102.1, 105.1], failure=Failure("WorkerLost", "w0"))
CUT = record(3, scheduled=109.0, failure=Failure(STOPPED, ""))
UNSENT = record(4, scheduled=109.0, failure=Failure(BOUND_EXCEEDED, ""))


def test_by_hand() -> None:
    metrics = measure(run_result([WHOLE, LATE, LOST, CUT, UNSENT]), percentiles=[50.0, 100.0])
    assert (metrics.requests, metrics.completed, metrics.failed) == (5, 2, 1)
    assert (metrics.unfinished, metrics.unsent) == (1, 1)
    assert metrics.errors == {"WorkerLost": 1}
    assert metrics.messages == {"WorkerLost": "w0"}
    assert metrics.total_input_tokens == 6
    assert metrics.total_output_tokens == 6
    assert metrics.duration_s == 10.0
    assert metrics.request_throughput == pytest.approx(0.2)
    assert metrics.output_throughput == pytest.approx(0.6)
    assert metrics.total_token_throughput == pytest.approx(1.2)
    # The second 2 of the run holds 102.0 and 102.1; second 0 holds four tokens.
    assert metrics.peak_tokens_per_s == 4

    assert metrics.ttft is not None
    assert metrics.ttft.count == 2
    assert metrics.ttft.mean == pytest.approx((0.3 + 0.9) / 2)
    assert metrics.ttft.std == pytest.approx(0.3)
    assert metrics.ttft.percentiles[100.0] == pytest.approx(0.9, rel=1e-3)
    assert metrics.tpot is not None
    assert metrics.tpot.mean == pytest.approx((0.35 / 3 + 0.1) / 2)
    assert metrics.itl is not None
    assert metrics.itl.count == 3  # tokens of one message have no gap between them
    assert metrics.itl.mean == pytest.approx((0.1 + 0.2 + 0.1) / 3)
    assert metrics.e2el is not None
    assert metrics.e2el.mean == pytest.approx((0.65 + 1.0) / 2)


def test_the_largest_gap_counts_failed_answers_too() -> None:
    metrics = measure(run_result([WHOLE, LATE, LOST]))
    assert metrics.largest_gap is not None
    assert metrics.largest_gap.request == 2
    assert metrics.largest_gap.gap.seconds == pytest.approx(3.0)
    assert metrics.largest_gap.gap.start == 102.1
    assert metrics.largest_gap.gap.token == 1
    assert list(WHOLE.gaps()) == [Gap(100.3, 100.4 - 100.3, 1), Gap(100.4, 100.6 - 100.4, 2)]


def test_goodput() -> None:
    result = run_result([WHOLE, LATE, LOST, CUT, UNSENT])
    metrics = measure(result, [Slo("ttft", 0.5)])
    # Judged: all but the one that the run cut off itself.
    assert (metrics.good, metrics.judged) == (1, 4)
    assert metrics.good_share == pytest.approx(0.25)
    assert metrics.request_goodput == pytest.approx(0.1)
    assert measure(result).good is None


def test_nothing_came() -> None:
    metrics = measure(run_result([LOST]))
    assert metrics.ttft is None
    assert metrics.itl is None
    assert metrics.request_throughput == 0.0


def test_percentiles_count_their_samples() -> None:
    values = distribution([i / 1000 for i in range(1, 1001)], [50.0, 90.0, 99.0, 99.9, 99.99])
    assert values is not None
    assert values.count == 1000
    for percentile, expected in ((50.0, 0.5), (90.0, 0.9), (99.0, 0.99), (99.9, 0.999), (99.99, 1.0)):
        assert values.percentiles[percentile] == pytest.approx(expected, rel=1e-3)
    assert values.resolves(99.9)
    assert not values.resolves(99.99)


def test_a_histogram_can_be_decoded_and_merged() -> None:
    from hdrh.histogram import HdrHistogram

    values = distribution([0.25, 0.5])
    assert values is not None
    merged = HdrHistogram.decode(values.histogram)
    merged.decode_and_add(values.histogram)
    assert merged.get_total_count() == 4
    assert merged.get_max_value() == pytest.approx(500_000, rel=1e-3)


def test_beyond_the_range_is_kept_as_the_largest() -> None:
    values = distribution([0.0, 1e9])
    assert values is not None
    assert values.count == 2
    assert values.largest == 1e9
    assert values.percentiles[99.0] == pytest.approx(86400, rel=1e-3)
    assert distribution([]) is None
