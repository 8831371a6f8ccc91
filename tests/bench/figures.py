# SPDX-License-Identifier: Apache-2.0
"""The figures that `make bench` reports: their goals, and how a row of build/bench.json is made from samples.

Pure: samples in, row out. What runs in the guest only hands over numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

PROCESSES = (1, 8, 64)


@dataclass(frozen=True)
class Figure:
    """One number; `goal` None means that it is shown beside the others and promises nothing."""

    id: str
    name: str
    unit: str
    goal: float | None
    how: str


_P1 = (
    "hand-back (first held ioctl to release, kernel clock) ÷ floor (raw cgroup.kill, last close, teardown),"
    " pairs alternated"
)
_P4 = "guest instructions of one ioctl (icount), armed ÷ not loaded, same loop"

_TABLE = (
    *(
        Figure(f"P1.{n}", f"hand-back with proof ÷ floor, {n} spot processes", "ratio", 1.3, _P1)
        for n in PROCESSES
    ),
    *(
        Figure(f"P1e.{n}", f"hand-back on empty ÷ floor, {n} spot processes", "ratio", 1.1, _P1)
        for n in PROCESSES
    ),
    *(
        Figure(f"P1n.{n}", f"hand-back with notify ÷ floor, {n} spot processes", "ratio", None, _P1)
        for n in PROCESSES
    ),
    Figure(
        "P1.raw100", "hand-back with proof ÷ floor, 1 process, teardown 100 ms as it is", "ratio", None, _P1
    ),
    Figure("P1.raw0", "hand-back with proof ÷ floor, 1 process, no teardown", "ratio", None, _P1),
    Figure(
        "P1.slowdown",
        "one Python loop, guest ÷ host: what the teardown was dilated by",
        "ratio",
        None,
        "same loop",
    ),
    Figure("P4.armed", "query ioctl, gate live, caller unwatched ÷ no gate", "ratio", 1.05, _P4),
    Figure("P4.disarmed", "query ioctl, gate armed, nothing watched ÷ no gate", "ratio", 1.0, _P4),
    Figure("P4.count", "smallest possible ioctl, gate live, caller unwatched ÷ no gate", "ratio", None, _P4),
    Figure(
        "P4.instructions",
        "what a live gate adds to one ioctl of an unwatched caller",
        "instructions",
        None,
        _P4,
    ),
)
FIGURES: Mapping[str, Figure] = {figure.id: figure for figure in _TABLE}

#: A ratio is as good as its goal when it rounds to it: 1.0 can't be met to the last instruction.
ROUNDING = 0.005


@dataclass(frozen=True)
class Row:
    """One entry of build/bench.json, as the design's table of names has it."""

    id: str
    name: str
    value: float
    unit: str
    goal: float | None
    holds: bool | None
    spread: tuple[float, float]
    samples: int
    how: str


def row(figure_id: str, samples: Sequence[float]) -> Row:
    """Make the row of a figure: its median, its lowest and highest sample, and whether the goal holds.

    Raises:
        KeyError: the figure is not in the table.
        ValueError: no samples, which would be a figure made of nothing.
    """
    figure = FIGURES[figure_id]
    if not samples:
        raise ValueError(f"{figure_id}: no samples")
    value = median(samples)
    holds = None if figure.goal is None else value <= figure.goal + ROUNDING
    spread = (round(min(samples), 4), round(max(samples), 4))
    return Row(
        figure.id,
        figure.name,
        round(value, 4),
        figure.unit,
        figure.goal,
        holds,
        spread,
        len(samples),
        figure.how,
    )


def ratios(measured: Sequence[float], floor: Sequence[float]) -> list[float]:
    """Pair by pair, so that what slows the machine for a while slows both sides."""
    return [a / b for a, b in zip(measured, floor, strict=True)]


def merge(path: Path, rows: Sequence[Row]) -> None:
    """Write rows into `path`, replacing those with the same id, whole or not at all."""
    kept = json.loads(path.read_text()) if path.exists() else []
    new = {r.id for r in rows}
    kept = [entry for entry in kept if entry["id"] not in new] + [asdict(r) for r in rows]
    order = list(FIGURES)
    kept.sort(key=lambda entry: order.index(entry["id"]) if entry["id"] in FIGURES else len(order))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(kept, file, indent=1, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def table(rows: Sequence[Row]) -> str:
    """Rows as text, one a line, for a person."""
    lines = []
    for r in rows:
        verdict = "     " if r.holds is None else "holds" if r.holds else "MISS "
        goal = "" if r.goal is None else f"  goal ≤ {r.goal:g}"
        spread = f"[{r.spread[0]:g} … {r.spread[1]:g}] n={r.samples}"
        lines.append(f"{verdict} {r.id:<15} {r.value:>9.3f} {r.unit:<12} {spread}{goal}  {r.name}")
    return "\n".join(lines)
