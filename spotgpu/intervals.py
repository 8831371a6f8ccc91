# SPDX-License-Identifier: Apache-2.0
"""Time intervals that may overlap: how much they cover, and what each instant belongs to. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

Interval = tuple[int, int]


def union_ns(intervals: Iterable[Interval], start_ns: int, end_ns: int) -> int:
    """How many ns of [start, end) at least one interval covers.

    Args:
        intervals: (start, end) in ns, in any order, overlapping or not; what lies outside the window does not
            count.
        start_ns: start of the window.
        end_ns: end of the window; nothing is covered when it is not after the start.
    """
    covered = 0
    reached = start_ns
    for begin, end in sorted(intervals):
        begin, end = max(begin, reached), min(end, end_ns)
        if end > begin:
            covered += end - begin
            reached = end
    return covered


def partition(
    intervals: Sequence[Interval], start_ns: int, end_ns: int
) -> Iterator[tuple[int | None, int, int]]:
    """Cut [start, end) into pieces, each owned by the first interval of the sequence that covers it.

    The pieces are in order, without gap or overlap, so their lengths add up to the window.

    Args:
        intervals: (start, end) in ns; where two overlap, the one that stands earlier here owns the time.
        start_ns: start of the window.
        end_ns: end of the window.

    Yields:
        (index into intervals, or None where nothing covers; start; end), neighbours having different owners.
    """
    opening = sorted((begin, index) for index, (begin, end) in enumerate(intervals) if end > begin)
    cuts = sorted({at for pair in intervals for at in pair if start_ns < at < end_ns} | {end_ns})
    active: list[int] = []  # heap of indexes; those that ended are dropped when they come to the top
    opened = 0
    piece_start, owner_before = start_ns, None
    at = start_ns
    for cut in cuts:
        while opened < len(opening) and opening[opened][0] <= at:
            heapq.heappush(active, opening[opened][1])
            opened += 1
        while active and intervals[active[0]][1] <= at:
            heapq.heappop(active)
        owner = active[0] if active else None
        if owner != owner_before and at > piece_start:
            yield owner_before, piece_start, at
            piece_start = at
        owner_before = owner
        at = cut
    if at > piece_start:
        yield owner_before, piece_start, at
