# SPDX-License-Identifier: Apache-2.0
"""One Python loop, timed: guest ÷ host is how much emulation slows our Python down, and the teardown not."""

from __future__ import annotations

import time

LOOPS = 200_000
TRIES = 5


def loop_ns() -> int:
    """Return the shortest of a few runs of the loop, ns."""
    return min(_once() for _ in range(TRIES))


def _once() -> int:
    begin = time.perf_counter_ns()
    total = 0
    for i in range(LOOPS):
        total += i & 7
    assert total
    return time.perf_counter_ns() - begin
