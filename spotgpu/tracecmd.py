# SPDX-License-Identifier: Apache-2.0
"""`spotgpu trace`: finds traces, and prints or writes them in the form that was asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from spotgpu import output, waterfall
from spotgpu.errors import SpotgpuError, UsageError
from spotgpu.names import Attr
from spotgpu.report import page
from spotgpu.traces import Trace, TraceLog


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for.

    Attributes:
        file: the agent's trace file.
        trace_id: one trace, by the beginning of its id; None for the last ones.
        last: how many of the last ones.
        listing: a line each instead of a waterfall each.
        html: where to write a page; `-` is stdout.
        as_json: spans as JSON.
        ascii_only: no block characters.
        width: columns; None for the terminal's.
    """

    file: Path
    trace_id: str | None = None
    last: int = 1
    listing: bool = False
    html: Path | None = None
    as_json: bool = False
    ascii_only: bool = False
    width: int | None = None


def run(request: Request, out: TextIO, err: TextIO) -> int:
    """Do it; the exit status.

    Raises:
        SpotgpuError: nothing was found, or it cannot be read or written.
    """
    log = TraceLog(request.file)
    traces = [log.find(request.trace_id)] if request.trace_id else log.last(request.last)
    if not traces:
        raise SpotgpuError("no finished trace in it yet", str(request.file))
    if log.skipped:
        err.write(f"spotgpu trace: {log.skipped} lines of {request.file} are no spans and were left out\n")
    if request.html == Path("-"):
        out.write(page(traces))
        return 0
    told: dict[str, object] = {"traces": [_plain(trace, request.listing) for trace in traces]}
    if request.html is not None:
        told["html"] = str(_write_page(request.html, traces))
    if request.as_json:
        out.write(output.to_json(told))
    elif request.html is not None:
        out.write(f"{told['html']}\n")
    elif request.listing:
        out.write(output.table([_line(trace) for trace in traces]))
    else:
        _draw(request, traces, out)
    return 0


def _draw(request: Request, traces: Sequence[Trace], out: TextIO) -> None:
    width = request.width or output.width(out)
    blocks = not request.ascii_only and output.draws(out, "█▏▐░┬µ▲")
    colour = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    out.write("\n".join(waterfall.render(trace, width, blocks, colour) for trace in traces))


def _write_page(path: Path, traces: Sequence[Trace]) -> Path:
    try:
        path.write_text(page(traces), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", "--html", "name a file in a folder you may write to"
        ) from error
    return path.resolve()


def _line(trace: Trace) -> dict[str, object]:
    root = trace.root.attributes
    return {
        "trace": trace.trace_id[:8],
        "start": waterfall.when(trace.root.start_ns),
        "owner": root.get(Attr.OWNER),
        "outcome": waterfall.outcome(trace),
        "total": waterfall.duration(trace.total_ns),
        "unexplained": waterfall.duration(waterfall.breakdown(trace)[waterfall.UNEXPLAINED]),
    }


def _plain(trace: Trace, short: bool) -> dict[str, object]:
    told: dict[str, object] = {
        "trace_id": trace.trace_id,
        "name": trace.root.name,
        "outcome": waterfall.outcome(trace),
        "start_ns": trace.root.start_ns,
        "total_ns": trace.total_ns,
        "breakdown_ns": waterfall.breakdown(trace),
        "summary": waterfall.sentence(trace),
    }
    return told if short else {**told, "spans": [asdict(span) for span in (trace.root, *trace.spans)]}
