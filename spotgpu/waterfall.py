# SPDX-License-Identifier: Apache-2.0
"""A trace as a picture of bars: what each row shows, and how a terminal shows it. Pure.

    owner.hold    ████████████████████████████████   312 ms
      evict.kill  ▌                                 4.21 ms
      drain.cgroup ▐██████████████████▍              190 ms

The same rows and sums make the HTML page (report.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from spotgpu.intervals import Interval, partition
from spotgpu.names import Attr, Outcome, Phase
from spotgpu.text import printable
from spotgpu.traces import Span, Trace

UNEXPLAINED: Final = "unexplained"
# What a hand-back is made of, in few words; in the order in which an instant is given to one of them.
SHORT: Final = {
    Phase.EVICT_KILL.value: "kill",
    Phase.DRAIN_CGROUP.value: "cgroup",
    Phase.DRAIN_HANDLES.value: "handles",
    Phase.DRAIN_MEMORY.value: "memory",
    Phase.RELEASE.value: "release",
}
OUTCOMES: Final = {
    Outcome.RELEASED: "the device was proven free, then the owner was let through",
    Outcome.EMPTY: "the kernel let the owner through once the spot cgroups were empty; the device was clean",
    Outcome.DEADLINE: "the deadline passed: the owner was let through, the device was NOT proven free",
    Outcome.DEADLINE_EIO: "the deadline passed: the owner's call failed with EIO",
    Outcome.ORPHAN: "no agent: the kernel evicted alone and let the owner through",
    Outcome.UNDETECTED: "the watch was taken away and the owner let through",
    Outcome.DIRTY: "the owner was let through and the device was found NOT clean afterwards",
    Outcome.ABANDONED: "the owner's container went away while it was held",
    Outcome.ABORTED: "the agent gave up; the kernel's deadline decided",
}
MAX_ALIKE: Final = 8  # spans of one name that get a row each; more share one
MIN_WIDTH: Final = 40
MAX_WIDTH: Final = 160
MAX_NOTES: Final = 20


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the picture.

    Attributes:
        label: name of the span, or of the spans that share the row.
        kind: what to colour it by: the span's name.
        depth: 0 for the root.
        pieces: (start, end), wall ns.
        duration_ns: of the span; of the pieces together where several share the row.
        failed: a span of it has the status error.
    """

    label: str
    kind: str
    depth: int
    pieces: tuple[Interval, ...]
    duration_ns: int
    failed: bool = False


def window(trace: Trace) -> Interval:
    """Earliest start and latest end of any span, wall ns; never empty."""
    spans = (trace.root, *trace.spans)
    start = min(span.start_ns for span in spans)
    return start, max(start + 1, *(span.end_ns for span in spans))


def breakdown(trace: Trace) -> dict[str, int]:
    """Where the time of the root went: ns by span name, and `unexplained`; the values add up to the total.

    Where phases overlap, the time belongs to the one that SHORT lists first. `owner.hold` is the whole and so
    no part.
    """
    order = {name: n for n, name in enumerate(SHORT)}
    parts = [span for span in trace.spans if span.name != Phase.OWNER_HOLD]
    parts.sort(key=lambda span: order.get(span.name, len(order)))
    sums = {span.name: 0 for span in parts}
    sums[UNEXPLAINED] = 0
    cuts = partition([(span.start_ns, span.end_ns) for span in parts], trace.root.start_ns, trace.root.end_ns)
    for owner, start, end in cuts:
        sums[UNEXPLAINED if owner is None else parts[owner].name] += end - start
    return sums


def gaps(trace: Trace) -> tuple[Interval, ...]:
    """The times of the root that no phase explains."""
    parts = [(span.start_ns, span.end_ns) for span in trace.spans if span.name != Phase.OWNER_HOLD]
    cuts = partition(parts, trace.root.start_ns, trace.root.end_ns)
    return tuple((start, end) for owner, start, end in cuts if owner is None)


def rows(trace: Trace) -> list[Row]:
    """The rows of a trace: its root, its spans by depth and start, and the gaps."""
    made = [_row([trace.root], 0)]
    depths = _depths(trace)
    alike: dict[tuple[str, str | None], list[Span]] = {}
    for span in trace.spans:
        alike.setdefault((span.name, span.parent), []).append(span)
    done: set[tuple[str, str | None]] = set()
    for span in trace.spans:
        key = (span.name, span.parent)
        if len(alike[key]) <= MAX_ALIKE:
            made.append(_row([span], depths[span.span_id]))
        elif key not in done:
            made.append(_row(alike[key], depths[span.span_id]))
        done.add(key)
    missing = gaps(trace)
    if trace.spans:
        lost = sum(end - start for start, end in missing)
        made.append(Row(UNEXPLAINED, UNEXPLAINED, 1, missing, lost))
    return made


def _row(spans: Sequence[Span], depth: int) -> Row:
    first = spans[0]
    pieces = tuple((span.start_ns, span.end_ns) for span in spans)
    cuts = partition(pieces, min(start for start, _ in pieces), max(end for _, end in pieces))
    covered = sum(end - start for owner, start, end in cuts if owner is not None)
    label = printable(first.name, 32) + (f" x{len(spans)}" if len(spans) > 1 else "")
    return Row(label, first.name, depth, pieces, covered, any(span.status == "error" for span in spans))


def _depths(trace: Trace) -> dict[str, int]:
    """Depth by span id; a span whose parent is not there hangs on the root, and so does a ring of parents."""
    parents = {span.span_id: span.parent for span in trace.spans}
    depths = {}
    for span in trace.spans:
        depth, at = 1, span.parent
        while at in parents and depth <= len(parents):
            depth, at = depth + 1, parents[at]
        depths[span.span_id] = min(depth, 8) if depth <= len(parents) else 1
    return depths


# Words ------------------------------------------------------------------------------------------------------


def duration(ns: int) -> str:
    """Three digits and a unit: `312 ms`, `4.21 ms`, `85.0 µs`, `7 ns`."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if abs(ns) >= size * 0.9995:
            value = ns / size
            digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    return f"{ns} ns"


def when(ns: int) -> str:
    """Wall ns since the epoch as UTC to the millisecond."""
    try:
        return datetime.fromtimestamp(ns // 10**6 / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (ValueError, OverflowError, OSError):
        return f"{ns} ns since the epoch"


def sentence(trace: Trace) -> str:
    """One line: how long the owner waited, and where the time went."""
    sums = breakdown(trace)
    held = any(span.name == Phase.OWNER_HOLD for span in trace.spans)
    names = [name for name in sums if sums[name] or name in SHORT or name == UNEXPLAINED]
    names.sort(
        key=lambda name: (name == UNEXPLAINED, list(SHORT).index(name) if name in SHORT else len(SHORT))
    )
    parts = ", ".join(f"{SHORT.get(name, printable(name, 32))} {duration(sums[name])}" for name in names)
    return f"{'owner waited' if held else 'took'} {duration(trace.total_ns)}: {parts}"


def outcome(trace: Trace) -> str:
    """The outcome as the root has it, or `unknown`."""
    return printable(trace.root.attributes.get(Attr.OUTCOME, "unknown"), 32)


def explain(trace: Trace) -> str:
    """What the outcome means; empty for one we do not know."""
    return {name.value: words for name, words in OUTCOMES.items()}.get(outcome(trace), "")


def notes(trace: Trace) -> list[str]:
    """What a person should not miss: late witnesses, strangers on the device, failures, doubts."""
    found: list[str] = []
    for span in (trace.root, *trace.spans):
        name = printable(span.name, 32)
        if late := span.attributes.get(Attr.WITNESS_LATE):
            found.append(f"{name}: late witness: {listed(late)}")
        if holders := span.attributes.get(Attr.HOLDERS):
            found.append(f"{name}: device held by {listed(holders)}")
        if span.status == "error":
            why = printable(span.attributes.get(Attr.ERROR_TYPE, "no error.type"), 64)
            found.append(f"{name}: failed: {why}")
    root = trace.root.attributes
    if root.get(Attr.RESUMED):
        found.append("the agent was restarted in the middle; the new one finished this trace")
    if root.get(Attr.CLAMPED):
        found.append(f"{printable(root[Attr.CLAMPED])} spans had an end before their start and were clamped")
    if root.get(Attr.COMPLETE) is False:
        found.append("the trace does not explain the hand-back: see unexplained")
    if len(found) > MAX_NOTES:
        found[MAX_NOTES:] = [f"{len(found) - MAX_NOTES} more"]
    return found


def listed(value: object) -> str:
    """An attribute's value in one line; sequences with commas."""
    items = value if isinstance(value, list | tuple) else [value]
    shown = [printable(item, 96) for item in items[:16]]
    return ", ".join(shown) + (f" and {len(items) - 16} more" if len(items) > 16 else "")


def ticks(span_ns: int, most: int) -> list[int]:
    """Round offsets in ns for an axis of this length: from 0, equal steps of 1, 2 or 5, at most `most`."""
    step = 1
    while span_ns // step >= max(1, most):
        digit = str(step)[0]
        step = step * 5 // 2 if digit == "2" else step * 2
    return list(range(0, span_ns + 1, step))


# The terminal -----------------------------------------------------------------------------------------------

_EIGHTHS: Final = "▏▎▍▌▋▊▉█"
_COLOURS: Final = {
    Phase.OWNER_HOLD.value: "34",
    Phase.EVICT_KILL.value: "31",
    Phase.DRAIN_CGROUP.value: "33",
    Phase.DRAIN_HANDLES.value: "33",
    Phase.DRAIN_MEMORY.value: "35",
    Phase.RELEASE.value: "32",
    UNEXPLAINED: "90",
}


def render(trace: Trace, width: int = 80, blocks: bool = True, colour: bool = False) -> str:
    """The waterfall as text.

    Args:
        trace: what to draw.
        width: columns; no line is longer.
        blocks: draw with block characters; plain ASCII when False.
        colour: use ANSI colours.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    words = [sentence(trace)]
    if meaning := explain(trace):
        words.append(f"{outcome(trace)}: {meaning}")
    words += [("▲ " if blocks else "! ") + note for note in notes(trace)]
    plain = (lambda line: line) if blocks else _ascii
    lines = [
        *_wrapped(map(plain, _head(trace)), width),
        "",
        *map(plain, _chart(trace, width, blocks, colour)),
        "",
        *_wrapped(map(plain, words), width),
    ]
    return "\n".join(lines) + "\n"


def _head(trace: Trace) -> list[str]:
    root = trace.root.attributes
    trigger = f"  (trigger {printable(root[Attr.TRIGGER], 32)})" if Attr.TRIGGER in root else ""
    who = [f"owner {printable(root[Attr.OWNER], 64)}"] if Attr.OWNER in root else []
    devices = root.get(Attr.DEVICES) or root.get(Attr.HW_ID)
    who += [f"devices {listed(devices)}"] if devices else []
    return [
        f"{printable(trace.root.name, 32)}  {outcome(trace)}{trigger}",
        f"{when(trace.root.start_ns)}  trace {trace.trace_id}",
        *(["  ".join(who)] if who else []),
    ]


def _chart(trace: Trace, width: int, blocks: bool, colour: bool) -> list[str]:
    start, end = window(trace)
    drawn = rows(trace)
    label_width = min(max(len(_label(row)) for row in drawn), width // 3)
    value_width = max(len(duration(row.duration_ns)) for row in drawn)
    bar_width = width - label_width - value_width - 2
    lines = _axis(end - start, label_width, bar_width)
    for row in drawn:
        label = _cut(_label(row), label_width)
        bar = _bar(row.pieces, start, end, bar_width, blocks, row.kind == UNEXPLAINED)
        if colour and row.kind in _COLOURS:
            bar = f"\x1b[{_COLOURS[row.kind]}m{bar}\x1b[0m"
        lines.append(f"{label:<{label_width}} {bar} {duration(row.duration_ns):>{value_width}}".rstrip())
    return lines


def _label(row: Row) -> str:
    return "  " * row.depth + ascii(row.label)[1:-1] + (" !" if row.failed else "")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


def _axis(span_ns: int, label_width: int, bar_width: int) -> list[str]:
    marks = ticks(span_ns, bar_width // 11)
    numbers = [" "] * bar_width
    rule = ["─"] * bar_width
    for mark in marks:
        at = min(mark * bar_width // span_ns, bar_width - 1)
        text = "0" if mark == 0 else tick_text(mark, marks[1])
        if at + len(text) <= bar_width:
            numbers[at : at + len(text)] = text
        rule[at] = "┬"
    pad = " " * (label_width + 1)
    return [(pad + "".join(numbers)).rstrip(), pad + "".join(rule)]


def tick_text(ns: int, step: int) -> str:
    """Text of an axis mark at this offset, on an axis with this step (ns)."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if step >= size or (step * 10 >= size and ns >= size):
            return f"{ns / size:g} {unit}"
    return f"{ns} ns"


def _bar(pieces: Iterable[Interval], start: int, end: int, width: int, blocks: bool, gap: bool) -> str:
    """Cells of a row: each shows how much of it is covered, and from which side."""
    cells = [" "] * width
    full = ("░" if gap else "█") if blocks else ("." if gap else "#")
    for begin, until in pieces:
        left, right = ((at - start) * width / (end - start) for at in (begin, until))
        for n in range(min(int(left), width - 1), min(int(right), width - 1) + 1):
            inside = min(right, n + 1) - max(left, n)
            if inside <= 0 and n != int(left):
                continue  # ends exactly on this cell's edge
            cells[n] = _cell(inside, left - n, full, blocks) if cells[n] != full else full
    return "".join(cells)


def _cell(inside: float, offset: float, full: str, blocks: bool) -> str:
    if inside >= 15 / 16 or full in "░.":
        return full
    if not blocks:
        return full if inside >= 0.5 else "|"
    if offset <= 0:
        return _EIGHTHS[max(0, round(inside * 8) - 1)]
    if offset + inside >= 1 - 1 / 16:
        return "▐" if inside >= 0.3 else "▕"
    return "▏" if offset < 0.5 else "▕"


def _wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """The lines cut at spaces, but not between a number and its unit, into pieces that fit."""
    for line in lines:
        left = _UNIT.sub("\xa0", line)
        while len(left) > width:
            at = left.rfind(" ", width // 2, width + 1)
            at = at if at > 0 else width
            yield left[:at].rstrip(" ").replace("\xa0", " ")
            left = "  " + left[at:].strip(" ")
        yield left.replace("\xa0", " ")


_UNIT: Final = re.compile(r"(?<=\d) (?=(?:s|ms|µs|us|ns)\b)")
_PLAIN: Final = str.maketrans({"µ": "u", "─": "-", "┬": "+", "…": "~", "▲": "!"})


def _ascii(text: str) -> str:
    return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode()
