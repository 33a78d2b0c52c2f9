"""A run as a picture: gaps between tokens over time, and what happened to each worker below. Pure; SVG 1.1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from colibri.bench.chaos.runner import ChaosResult
from colibri.bench.chaos.timeline import Moment, MomentKind
from colibri.bench.chaos.verdict import Verdict

WIDTH, LEFT, RIGHT, TOP = 1120, 90, 20, 64
PLOT, LANE, GAP = 230, 26, 34
#: One bar is the largest gap that ended within its width in pixels.
_BAR = 2
_COLOURS = {"kill": "#c0392b", "stop": "#d68910", "link-down": "#a04000", "link": "#b9770e", "drain": "#2471a3",
            "scale": "#2471a3", "move": "#1f618d"}  # fmt: skip
_FAULT = "#7d3c98"
_AWAY = "#d5d8dc"
_SERVING = {"serving", "healthy", "suspect"}


@dataclass(frozen=True, slots=True)
class _Scale:
    """Seconds of the run and milliseconds of gaps to pixels."""

    end_s: float
    top_ms: float

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_s, 0.0), self.end_s) / self.end_s

    def y(self, ms: float) -> float:
        return TOP + PLOT * (1.0 - min(ms, self.top_ms) / self.top_ms)


def draw(result: ChaosResult, verdict: Verdict, title: str) -> str:
    """The whole file."""
    end_s = max(result.ended - result.started, 1e-3)
    limit_s = result.plan.limits.gap_over_quiet_s
    limit_ms = None if limit_s is None else (verdict.quiet.p99_s + limit_s) * 1e3
    largest_ms = max(verdict.chaos.largest_s, verdict.quiet.largest_s) * 1e3
    scale = _Scale(end_s, 1.1 * max(largest_ms, limit_ms or 0.0, 1.0))
    workers = sorted({moment.worker for moment in result.moments if moment.worker})
    lanes_top = TOP + PLOT + GAP
    height = lanes_top + LANE * len(workers) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(LEFT, 24, title, size=16),
        _text(LEFT, 44, _summary(verdict)),
        *_phases(result, scale, lanes_top + LANE * len(workers)),
        *_axes(scale, verdict, limit_ms),
        *_gaps(result, scale),
        *_lanes(result, scale, workers, lanes_top),
        *_seconds(scale, height - 34),
        *_legend(result, height - 10),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _summary(verdict: Verdict) -> str:
    return (
        f"{verdict.requests} requests, {verdict.failed} failed, {len(verdict.wrong)} wrong; "
        f"{verdict.events} events; quiet p99 {verdict.quiet.p99_s * 1e3:.0f} ms, "
        f"largest gap {verdict.chaos.largest_s * 1e3:.0f} ms"
    )


def _axes(scale: _Scale, verdict: Verdict, limit_ms: float | None) -> Iterable[str]:
    yield f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{TOP + PLOT}" stroke="#333"/>'
    yield f'<line x1="{LEFT}" y1="{TOP + PLOT}" x2="{WIDTH - RIGHT}" y2="{TOP + PLOT}" stroke="#333"/>'
    for ms in _ticks(scale.top_ms, 5):
        yield _text(LEFT - 8, scale.y(ms) + 4, f"{ms:g} ms", anchor="end")
        yield f'<line x1="{LEFT - 4}" y1="{scale.y(ms):.1f}" x2="{LEFT}" y2="{scale.y(ms):.1f}" stroke="#333"/>'
    levels = [(verdict.quiet.p99_s * 1e3, "quiet p99", "#1e8449")]
    if limit_ms is not None:
        levels.append((limit_ms, "limit", "#c0392b"))
    for level, name, colour in levels:
        y = scale.y(level)
        yield (
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{colour}"'
            ' stroke-dasharray="6 4"/>'
        )
        yield _text(WIDTH - RIGHT, y - 4, f"{name} {level:.0f} ms", anchor="end", colour=colour)


def _gaps(result: ChaosResult, scale: _Scale) -> Iterable[str]:
    """The largest gap of each few pixels, as one path."""
    largest: dict[int, float] = {}
    for record in result.records:
        for gap in record.gaps():
            at_s = gap.start + gap.seconds - result.started
            if 0 <= at_s <= scale.end_s:
                column = int((scale.x(at_s) - LEFT) / _BAR)
                largest[column] = max(largest.get(column, 0.0), gap.seconds * 1e3)
    bars = [
        f"M{LEFT + column * _BAR:.0f} {TOP + PLOT}V{scale.y(ms):.1f}"
        for column, ms in sorted(largest.items())
    ]
    yield f'<path d="{"".join(bars)}" stroke="#5d6d7e" stroke-width="{_BAR}" fill="none"/>'


def _phases(result: ChaosResult, scale: _Scale, bottom: float) -> Iterable[str]:
    for moment in result.moments:
        if moment.kind is MomentKind.PHASE:
            x = scale.x(moment.at_s)
            yield f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="#d5d8dc"/>'
            yield _text(x + 3, TOP - 2, moment.action, colour="#7f8c8d")


def _lanes(result: ChaosResult, scale: _Scale, workers: Sequence[str], top: float) -> Iterable[str]:
    for index, worker in enumerate(workers):
        y = top + LANE * index
        own = [moment for moment in result.moments if moment.worker == worker]
        yield _text(LEFT - 8, y + 15, worker, anchor="end")
        for begin, end in _away(own, scale.end_s):
            yield _box(scale, begin, end, y + 7, LANE - 14, _AWAY, f"{worker} does not serve")
        for moment in own:
            if moment.kind is MomentKind.EVENT:
                yield from _event(scale, moment, own, y)


def _event(scale: _Scale, moment: Moment, own: Sequence[Moment], y: float) -> Iterable[str]:
    colour = _COLOURS.get(moment.action, _FAULT)
    undo = next((m for m in own if m.number == moment.number and m.at_s > moment.at_s), None)
    if undo is not None:
        yield _box(scale, moment.at_s, undo.at_s, y + 4, LANE - 8, colour, moment.text)
        return
    x = scale.x(moment.at_s)
    yield (
        f'<path d="M{x:.1f} {y + 3}l4 8l-4 8l-4 -8z" fill="{colour}"><title>{escape(moment.text)}</title></path>'
    )


def _away(own: Sequence[Moment], end_s: float) -> Iterable[tuple[float, float]]:
    """Times in which a worker did not serve, as the deployment told it."""
    since: float | None = None
    for moment in own:
        if moment.kind is not MomentKind.SEEN or not moment.action:
            continue
        if moment.action in _SERVING:
            if since is not None:
                yield since, moment.at_s
            since = None
        elif since is None:
            since = moment.at_s
    if since is not None:
        yield since, end_s


def _box(scale: _Scale, begin: float, end: float, y: float, height: float, colour: str, title: str) -> str:
    x = scale.x(begin)
    width = max(scale.x(end) - x, 1.5)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _seconds(scale: _Scale, y: float) -> Iterable[str]:
    for second in _ticks(scale.end_s, 10):
        yield _text(scale.x(second), y, f"{second:g} s", anchor="middle")


def _legend(result: ChaosResult, y: float) -> Iterable[str]:
    """Of what happened in this run."""
    events = (moment.action for moment in result.moments if moment.kind is MomentKind.EVENT)
    words = [*dict.fromkeys(events), "does not serve, or is not used"]
    x = float(LEFT)
    for word in words:
        colour = _AWAY if word == words[-1] else _COLOURS.get(word, _FAULT)
        yield f'<rect x="{x:.1f}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 17, y, word)
        x += 32 + 7.0 * len(word)


def _ticks(top: float, count: int) -> list[float]:
    """Round numbers from 0 up to `top`, about `count` of them."""
    step = 1.0
    while top / step > count:
        step *= 2.5 if f"{step:e}".startswith("2") else 2.0
    return [step * index for index in range(int(top / step) + 1)]


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = "#1b2631"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
        ' paint-order="stroke" stroke="white" stroke-width="3">'
        f"{escape(text)}</text>"
    )
