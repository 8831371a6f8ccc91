# SPDX-License-Identifier: Apache-2.0
"""Traces as one HTML page that needs nothing else: no script, no font, no request. Pure.

All text that came from outside goes through _text(), and the page forbids itself to load anything, should
that fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from spotgpu import __version__, waterfall
from spotgpu.intervals import Interval
from spotgpu.names import Attr, Outcome, Phase
from spotgpu.text import printable
from spotgpu.traces import Span, Trace
from spotgpu.waterfall import SHORT, UNEXPLAINED, duration

_STYLE: Final = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
# Name of a span -> CSS class that colours it.
KINDS: Final = {
    Phase.OWNER_HOLD.value: "hold",
    Phase.EVICT_KILL.value: "kill",
    Phase.DRAIN_CGROUP.value: "cgroup",
    Phase.DRAIN_HANDLES.value: "handles",
    Phase.DRAIN_MEMORY.value: "memory",
    Phase.RELEASE.value: "release",
    Phase.POD_DELETE.value: "delete",
    UNEXPLAINED: "unexplained",
}
GOOD: Final = (Outcome.RELEASED.value, Outcome.EMPTY.value)
DOUBTFUL: Final = (Outcome.ORPHAN.value, Outcome.UNDETECTED.value, Outcome.ABANDONED.value)

LABEL, BARS, VALUE, ROW, AXIS = 170, 740, 110, 30, 28  # of the drawing, in its own units
FULL: Final = LABEL + BARS + VALUE


def page(traces: Sequence[Trace]) -> str:
    """The page of these traces, in the order given.

    Args:
        traces: at least one.
    """
    if not traces:
        raise ValueError("no traces")
    if len(traces) == 1:
        title = f"Hand-back {traces[0].trace_id[:8]}"
        index = ""
    else:
        title = f"{len(traces)} hand-backs"
        index = _index(traces)
    sections = "".join(_section(trace, n) for n, trace in enumerate(traces))
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f'<link rel="icon" href="data:,"><title>{title} · spotgpu</title><style>{_STYLE}</style></head>\n'
        f"<body><main>{index}{sections}</main>"
        f"<footer>spotgpu {__version__} · times are UTC wall clock, converted from the kernel's monotonic "
        "clock; durations are exact</footer></body></html>\n"
    )


def _text(value: object, limit: int = 1024) -> str:
    return escape(printable(value, limit), quote=True)


def _index(traces: Sequence[Trace]) -> str:
    lines = "".join(
        f'<tr><td><a href="#t{n}"><code>{_text(trace.trace_id[:8])}</code></a></td>'
        f"<td>{waterfall.when(trace.root.start_ns)}</td>"
        f"<td>{_text(trace.root.attributes.get(Attr.OWNER, ''), 64)}</td><td>{_pill(trace)}</td>"
        f'<td class="n">{duration(trace.total_ns)}</td></tr>'
        for n, trace in enumerate(traces)
    )
    return (
        f"<section><h1>{len(traces)} hand-backs</h1><div class=scroll><table><thead><tr>"
        '<th scope="col">Trace</th><th scope="col">Start</th><th scope="col">Owner</th>'
        '<th scope="col">Outcome</th><th scope="col" class="n">Total</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div></section>"
    )


def _section(trace: Trace, n: int) -> str:
    return (
        f'<section id="t{n}">{_heading(trace)}{_facts(trace)}{_notes(trace)}'
        f"{_where(trace)}{_drawing(trace, n)}{_table(trace)}{_more(trace)}</section>"
    )


def _pill(trace: Trace) -> str:
    name = waterfall.outcome(trace)
    kind = "good" if name in GOOD else "doubtful" if name in DOUBTFUL else "bad"
    return f'<span class="pill {kind}">{_text(name)}</span>'


def _heading(trace: Trace) -> str:
    held = any(span.name == Phase.OWNER_HOLD for span in trace.spans)
    words = waterfall.explain(trace)
    meaning = f"<p>{_text(words[:1].upper() + words[1:])}.</p>" if words else ""
    return (
        f"<header><h1>{_text(trace.root.name, 64)} {_pill(trace)}</h1>"
        f'<p class="big">{"Owner waited" if held else "Took"} <strong>{duration(trace.total_ns)}</strong></p>'
        f"{meaning}</header>"
    )


def _facts(trace: Trace) -> str:
    root, resource = trace.root.attributes, trace.root.resource
    devices = root.get(Attr.DEVICES) or root.get(Attr.HW_ID)
    facts: list[tuple[str, object]] = [
        ("Start", waterfall.when(trace.root.start_ns)),
        ("Trace", trace.trace_id),
        ("Owner", root.get(Attr.OWNER)),
        ("Devices", waterfall.listed(devices) if devices else None),
        ("Node", resource.get(Attr.HOST_NAME)),
        ("Trigger", root.get(Attr.TRIGGER)),
    ]
    if isinstance(error := root.get(Attr.CLOCK_ERROR_NS), int):
        facts.append(("Clock error", f"±{duration(error)}"))
    shown = "".join(f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in facts if value)
    return f'<dl class="facts">{shown}</dl>'


def _notes(trace: Trace) -> str:
    found = waterfall.notes(trace)
    if not found:
        return ""
    items = "".join(f"<li>{_text(note)}</li>" for note in found)
    return f'<ul class="notes" aria-label="What to look at">{items}</ul>'


def _where(trace: Trace) -> str:
    """Where the time went: one bar whose parts add up to the total, and its legend with the figures."""
    sums = waterfall.breakdown(trace)
    total = max(1, trace.total_ns)
    order = [*(name for name in SHORT if name in sums), *(name for name in sums if name not in SHORT)]
    parts, legend, at = [], [], 0.0
    for name in order:
        share = sums[name] / total * 100
        if share > 0:
            parts.append(
                f'<rect class="{_kind(name)}" x="{at:.3f}" width="{share:.3f}" height="10">'
                f"<title>{_text(name, 64)}: {duration(sums[name])}, {share:.1f} %</title></rect>"
            )
        at += share
        if sums[name] or name in SHORT or name == UNEXPLAINED:
            legend.append(
                f'<li><span class="key {_kind(name)}"></span>{_text(name, 64)} '
                f"<b>{duration(sums[name])}</b> <small>{share:.1f} %</small></li>"
            )
    return (
        "<h2>Where the time went</h2>"
        f'<svg class="stack" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{_text(waterfall.sentence(trace))}">{"".join(parts)}</svg>'
        f'<ul class="legend">{"".join(legend)}</ul>'
    )


def _kind(name: str) -> str:
    return KINDS.get(name, "other")


def _drawing(trace: Trace, n: int) -> str:
    start, end = waterfall.window(trace)
    drawn = waterfall.rows(trace)
    height = AXIS + ROW * len(drawn) + 6
    grid = "".join(
        _tick(mark, marks, end - start, height)
        for marks in [waterfall.ticks(end - start, 8)]
        for mark in marks
    )
    bars = "".join(_row(row, line, start, end) for line, row in enumerate(drawn))
    return (
        "<h2>Waterfall</h2>"
        f'<div class="scroll"><svg class="fall" viewBox="0 0 {FULL} {height}" role="img" '
        f'aria-labelledby="t{n}-title t{n}-desc"><title id="t{n}-title">Waterfall of trace '
        f'{_text(trace.trace_id)}</title><desc id="t{n}-desc">{_text(waterfall.sentence(trace))}. '
        "The table below has the same spans.</desc>"
        f"{grid}{bars}</svg></div>"
    )


def _tick(mark: int, marks: Sequence[int], span_ns: int, height: int) -> str:
    x = LABEL + mark * BARS / span_ns
    text = "0" if mark == 0 else waterfall.tick_text(mark, marks[1])
    anchor = "start" if mark == 0 else "end" if x > LABEL + BARS - 20 else "middle"
    return (
        f'<line class="grid" x1="{x:.2f}" x2="{x:.2f}" y1="{AXIS - 6}" y2="{height}"/>'
        f'<text class="axis" x="{x:.2f}" y="{AXIS - 11}" text-anchor="{anchor}">{text}</text>'
    )


def _row(row: waterfall.Row, line: int, start: int, end: int) -> str:
    y = AXIS + ROW * line
    label = f"{'✕ ' if row.failed else ''}{row.label}"
    bars = "".join(_bar(row, piece, y, start, end) for piece in row.pieces)
    return (
        f'<g class="{_kind(row.kind)}{" failed" if row.failed else ""}">'
        f'<text x="{4 + 14 * row.depth}" y="{y + 19}">{_text(label, 40)}</text>{bars}'
        f'<text class="value" x="{FULL - 4}" y="{y + 19}" text-anchor="end">'
        f"{duration(row.duration_ns)}</text></g>"
    )


def _bar(row: waterfall.Row, piece: Interval, y: int, start: int, end: int) -> str:
    scale = BARS / (end - start)
    width = max(2.0, (piece[1] - piece[0]) * scale)
    x = min(LABEL + (piece[0] - start) * scale, LABEL + BARS - width)
    length = piece[1] - piece[0]
    told = f"{row.label}: {duration(length)} ({length} ns), starts at {piece[0] - start} ns"
    return (
        f'<rect x="{x:.2f}" y="{y + 5}" width="{width:.2f}" height="{ROW - 12}" rx="2">'
        f"<title>{_text(told)}</title></rect>"
    )


def _table(trace: Trace) -> str:
    lines = "".join(_span_line(span, trace) for span in (trace.root, *trace.spans))
    heads = "".join(
        f'<th scope="col"{" class=n" if number else ""}>{head}</th>'
        for head, number in (
            ("Span", False),
            ("Offset, ns", True),
            ("Duration, ns", True),
            ("Start, ns since the epoch", True),
            ("Status", False),
            ("Attributes", False),
        )
    )
    return (
        "<h2>Spans</h2><div class=scroll><table><caption>Exact times of every span.</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _span_line(span: Span, trace: Trace) -> str:
    status = f'<span class="pill bad">{_text(span.status, 16)}</span>' if span.status == "error" else "ok"
    return (
        f'<tr><th scope="row"><span class="key {_kind(span.name)}"></span>{_text(span.name, 64)}'
        f'<br><code class="id">{_text(span.span_id, 16)}</code></th>'
        f'<td class="n">{span.start_ns - trace.root.start_ns}</td>'
        f'<td class="n">{span.end_ns - span.start_ns}</td>'
        f'<td class="n">{span.start_ns}</td><td>{status}</td><td>{_attributes(span.attributes)}</td></tr>'
    )


def _attributes(attributes: dict[str, object]) -> str:
    items = "".join(
        f"<li><code>{_text(name, 128)}</code> {_text(_shown(value))}</li>"
        for name, value in sorted(attributes.items())
    )
    return f'<ul class="attributes">{items}</ul>' if items else ""


def _shown(value: object) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _more(trace: Trace) -> str:
    spans = (trace.root, *trace.spans)
    events = [
        f"<li>+{_offset(event.get('at_ns'), trace)} <b>{_text(event.get('name', ''), 64)}</b> "
        f"{_attributes(found) if isinstance(found := event.get('attributes', {}), dict) else ''}</li>"
        for span in spans
        for event in span.events
    ]
    links = [
        f"<li>trace <code>{_text(link.get('trace_id', ''), 32)}</code> span "
        f"<code>{_text(link.get('span_id', ''), 16)}</code></li>"
        for span in spans
        for link in span.links
    ]
    return (
        _list("Events", events)
        + _list("Linked traces", links)
        + f"<details><summary>Resource</summary>{_attributes(trace.root.resource)}</details>"
    )


def _offset(at_ns: object, trace: Trace) -> str:
    return duration(at_ns - trace.root.start_ns) if isinstance(at_ns, int) else "?"


def _list(title: str, items: Iterable[str]) -> str:
    shown = "".join(items)
    return f"<h2>{title}</h2><ul>{shown}</ul>" if shown else ""
