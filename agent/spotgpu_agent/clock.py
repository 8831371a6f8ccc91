# SPDX-License-Identifier: Apache-2.0
"""Kernel time to wall time, with its error bound.

khook stamps with CLOCK_MONOTONIC; traces want the wall clock. Durations are only ever taken from the
monotonic clock, and one trace uses one offset, so a stepped wall clock can move a trace but never bend it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NS: Final = 1_000_000_000
READS: Final = 15
REMEASURE_NS: Final = 5 * NS


@dataclass(frozen=True, slots=True)
class Offset:
    """What to add to a monotonic time to get wall time.

    Attributes:
        offset_ns: wall minus monotonic.
        error_ns: the offset is right within plus or minus this much.
        at_ns: monotonic time of the measurement.
    """

    offset_ns: int
    error_ns: int
    at_ns: int

    def to_wall_ns(self, mono_ns: int) -> int:
        """Wall time (ns since the epoch) of a CLOCK_MONOTONIC time in ns."""
        return mono_ns + self.offset_ns


def measure(
    monotonic: Callable[[], int] = time.monotonic_ns,
    wall: Callable[[], int] = time.time_ns,
    reads: int = READS,
) -> Offset:
    """The offset from sandwiched reads: monotonic, wall, monotonic; the narrowest sandwich wins.

    Args:
        monotonic: CLOCK_MONOTONIC in ns.
        wall: CLOCK_REALTIME in ns.
        reads: sandwiches to try; a preempted one is wide and loses.
    """
    best: tuple[int, int, int] | None = None
    for _ in range(reads):
        before, now, after = monotonic(), wall(), monotonic()
        if best is None or after - before < best[2] - best[0]:
            best = (before, now, after)
    if best is None:
        raise ValueError("reads must be at least 1")
    before, now, after = best
    middle = before + (after - before) // 2
    return Offset(offset_ns=now - middle, error_ns=(after - before + 1) // 2, at_ns=after)


class Clock:
    """The process's view of both clocks; re-measured when older than `every_ns`."""

    def __init__(
        self,
        monotonic: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
        every_ns: int = REMEASURE_NS,
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._every_ns = every_ns
        self._offset = measure(monotonic, wall)

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC now, in ns: the clock khook stamps with."""
        return self._monotonic()

    def offset(self) -> Offset:
        """The current offset, no older than `every_ns`. A trace takes one and keeps it."""
        if self._monotonic() - self._offset.at_ns >= self._every_ns:
            self._offset = measure(self._monotonic, self._wall)
        return self._offset

    def to_wall_ns(self, mono_ns: int) -> int:
        """Wall time (ns since the epoch) of a CLOCK_MONOTONIC time in ns, by the current offset."""
        return self.offset().to_wall_ns(mono_ns)
