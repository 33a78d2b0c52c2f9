"""A run told: to people as a table, to machines with the field names of `vllm bench serve`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from colibri.bench.load.distribution import Distribution
from colibri.bench.load.metrics import Metrics
from colibri.bench.load.oracle import OracleReport
from colibri.bench.load.record import RequestRecord
from colibri.bench.load.slo import Slo
from colibri.bench.load.validity import Validity

#: Of an error's message, in the table.
_MESSAGE = 160
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end to end",
}


@dataclass(frozen=True, slots=True)
class Report:
    """good_share: of the judged requests, that must meet all SLOs; oracle: None when none was asked for."""

    metrics: Metrics
    validity: Validity
    slos: tuple[Slo, ...] = ()
    good_share: float = 1.0
    oracle: OracleReport | None = None

    def faults(self) -> tuple[str, ...]:
        """What did not hold; empty: the run passed."""
        metrics = self.metrics
        found = [f"invalid: {reason}" for reason in self.validity.reasons]
        if metrics.failed:
            found.append(f"{metrics.failed} requests failed: {_counts(metrics.errors)}")
        share = metrics.good_share
        if share is not None and share < self.good_share:
            found.append(
                f"SLOs: {metrics.good} of {metrics.judged} requests met them ({share:.2%}), "
                f"{self.good_share:.2%} must"
            )
        if self.oracle is not None:
            if self.oracle.wrong:
                first = self.oracle.wrong[0]
                where = "" if first.token is None else f" at token {first.token}"
                found.append(
                    f"oracle: {len(self.oracle.wrong)} wrong answers; the first is request "
                    f"{first.request}{where}: {first.reason}"
                )
            elif not self.oracle.tokens:
                found.append("oracle: no token to judge")
        return tuple(found)

    def document(self) -> dict[str, Any]:
        """Flat where `vllm bench serve` is; times in milliseconds. Percentile keys carry their number,
        `samples` their count."""
        metrics, validity = self.metrics, self.validity
        document: dict[str, Any] = {
            "duration": metrics.duration_s,
            "num_prompts": metrics.requests,
            "completed": metrics.completed,
            "failed": metrics.failed,
            "total_input_tokens": metrics.total_input_tokens,
            "total_output_tokens": metrics.total_output_tokens,
            "request_throughput": metrics.request_throughput,
            "request_goodput": metrics.request_goodput,
            "output_throughput": metrics.output_throughput,
            "total_token_throughput": metrics.total_token_throughput,
            "max_output_tokens_per_s": metrics.peak_tokens_per_s,
        }
        samples: dict[str, int] = {}
        histograms: dict[str, str] = {}
        for name in _LATENCIES:
            values: Distribution | None = getattr(metrics, name)
            samples[name] = 0 if values is None else values.count
            if values is not None:
                histograms[name] = values.histogram
                document |= _latency(name, values)
        gap = metrics.largest_gap
        document |= {
            "samples": samples,
            "histograms_us": histograms,
            "unfinished": metrics.unfinished,
            "unsent": metrics.unsent,
            "resumed": metrics.resumed,
            "errors_by_kind": dict(metrics.errors),
            "error_messages": dict(metrics.messages),
            "largest_gap_ms": None if gap is None else gap.gap.seconds * 1e3,
            "largest_gap_request": None if gap is None else gap.request,
            "goodput_slos_ms": {slo.metric: slo.bound_s * 1e3 for slo in self.slos},
            "good_share": metrics.good_share,
            "valid": validity.valid,
            "invalid_reasons": list(validity.reasons),
            "loop_cpu_share": validity.loop_cpu_share,
            "process_cpu_share": validity.process_cpu_share,
        }
        for name, lag in (("send_lag", validity.send_lag), ("loop_lateness", validity.loop_lateness)):
            if lag is not None:
                document |= {
                    f"p99_{name}_ms": lag.percentiles[99.0] * 1e3,
                    f"max_{name}_ms": lag.largest * 1e3,
                }
        document["oracle"] = None if self.oracle is None else _oracle(self.oracle)
        document["faults"] = list(self.faults())
        return document

    def lines(self) -> Iterator[str]:
        """For people."""
        metrics, validity = self.metrics, self.validity
        yield f"requests     {metrics.completed} whole, {metrics.failed} failed" + _more(metrics)
        for kind, count in metrics.errors.items():
            yield f"             {count} x {kind}: {metrics.messages[kind][:_MESSAGE]}"
        yield (
            f"throughput   {metrics.request_throughput:.3g} requests/s, {metrics.output_throughput:.4g} output "
            f"tokens/s, {metrics.total_token_throughput:.4g} tokens/s, in {metrics.duration_s:.1f} s"
        )
        if metrics.good is not None:
            slos = " ".join(f"{slo.metric}:{slo.bound_s * 1e3:g}" for slo in self.slos)
            yield (
                f"goodput      {metrics.request_goodput:.3g} requests/s; {metrics.good} of {metrics.judged} "
                f"met {slos}"
            )
        yield from self._table()
        if metrics.largest_gap is not None:
            gap = metrics.largest_gap
            yield (
                f"largest gap  {gap.gap.seconds * 1e3:.1f} ms, before token {gap.gap.token} of request "
                f"{gap.request}"
            )
        lag = validity.send_lag
        lateness = validity.loop_lateness
        yield (
            f"generator    send lag p99 {_ms(lag, 99.0)} ms, loop late p99 {_ms(lateness, 99.0)} ms, "
            f"{validity.loop_cpu_share:.1%} of a core in its loop, {validity.process_cpu_share:.1%} in its "
            f"process: {'valid' if validity.valid else 'INVALID'}"
        )
        if self.oracle is not None:
            yield (
                f"oracle       {self.oracle.tokens} tokens of {self.oracle.answers} whole and "
                f"{self.oracle.partial} partial answers, {len(self.oracle.wrong)} wrong"
            )
        for fault in self.faults():
            yield f"NOT HELD     {fault}"

    def _table(self) -> Iterator[str]:
        found = [(name, getattr(self.metrics, name)) for name in _LATENCIES]
        measured = [(name, values) for name, values in found if values is not None]
        if not measured:
            return
        percentiles = sorted(measured[0][1].percentiles)
        heads = "".join(f"{f'p{each:g}':>10}" for each in percentiles)
        yield f"{'ms':<28}{'samples':>8}{'mean':>10}{'std':>9}{heads}{'max':>10}"
        unresolved = False
        for name, values in measured:
            cells = ""
            for each in percentiles:
                few = not values.resolves(each)
                unresolved |= few
                cells += f"{f'{values.percentiles[each] * 1e3:.1f}' + ('*' if few else ''):>10}"
            moments = f"{values.mean * 1e3:>10.1f}{values.std * 1e3:>9.1f}"
            yield (
                f"{f'{_NAMES[name]} ({name})':<28}{values.count:>8}{moments}{cells}"
                f"{values.largest * 1e3:>10.1f}"
            )
        if unresolved:
            yield "* too few samples: the largest value by another name"


def record_document(record: RequestRecord) -> dict[str, Any]:
    """One request, for a file of JSON lines. Times in seconds after its scheduled time."""
    failure = record.failure

    def since(at: float | None) -> float | None:
        return None if at is None else round(at - record.scheduled, 6)

    return {
        "index": record.index,
        "variant": record.request.variant,
        "prompt_tokens": record.prompt_tokens,
        "max_tokens": record.request.max_tokens,
        "seed": record.request.seed,
        "scheduled": record.scheduled,
        "sent": since(record.sent),
        "accepted": since(record.accepted),
        "token_times": [since(at) for at in record.token_times],
        "ended": since(record.ended),
        "ids": list(record.ids),
        "receipts": [f"{receipt:016x}" for receipt in record.receipts],
        "finish_reason": record.finish_reason,
        "resumes": record.resumes,
        "error": None if failure is None else dataclasses.asdict(failure),
    }


def _latency(name: str, values: Distribution) -> dict[str, float]:
    found = {
        f"mean_{name}_ms": values.mean * 1e3,
        f"median_{name}_ms": values.median * 1e3,
        f"std_{name}_ms": values.std * 1e3,
        f"max_{name}_ms": values.largest * 1e3,
    }
    return found | {f"p{each:g}_{name}_ms": at * 1e3 for each, at in values.percentiles.items()}


def _oracle(report: OracleReport) -> dict[str, Any]:
    return {
        "answers": report.answers,
        "partial": report.partial,
        "tokens": report.tokens,
        "wrong": [dataclasses.asdict(wrong) for wrong in report.wrong],
        "held": report.held,
    }


def _more(metrics: Metrics) -> str:
    parts = [("unfinished", metrics.unfinished), ("not sent", metrics.unsent), ("resumed", metrics.resumed)]
    return "".join(f", {count} {what}" for what, count in parts if count)


def _counts(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in errors.items())


def _ms(values: Distribution | None, percentile: float) -> str:
    return "-" if values is None else f"{values.percentiles[percentile] * 1e3:.1f}"
