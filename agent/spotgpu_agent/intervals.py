# SPDX-License-Identifier: Apache-2.0
"""Lengths of time intervals that may overlap. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def union_ns(intervals: Iterable[tuple[int, int]], start_ns: int, end_ns: int) -> int:
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
