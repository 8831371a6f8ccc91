# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotgpu_agent.clock import Clock, measure


class FakeTime:
    """Two clocks; each read takes `cost` ns, or what `costs` still holds."""

    def __init__(self, offset: int, costs: list[int] | None = None) -> None:
        self.now = 1_000_000
        self.offset = offset
        self.costs = costs or []

    def _tick(self) -> int:
        self.now += self.costs.pop(0) if self.costs else 100
        return self.now

    def mono(self) -> int:
        return self._tick()

    def wall(self) -> int:
        return self._tick() + self.offset


@given(st.integers(-(10**18), 10**18), st.lists(st.integers(1, 10**9), max_size=45))
def test_offset_is_right_within_its_bound(offset: Any, costs: Any) -> None:
    fake = FakeTime(offset, costs)
    found = measure(fake.mono, fake.wall)
    assert abs(found.offset_ns - offset) <= found.error_ns


def test_a_preempted_sandwich_loses() -> None:
    fake = FakeTime(5, costs=[10**9] * 12)
    assert measure(fake.mono, fake.wall).error_ns <= 100


@given(st.lists(st.integers(0, 2**62), min_size=2))
def test_conversion_is_monotone_and_keeps_durations(times: Any) -> None:
    offset = Clock().offset()
    times.sort()
    walls = [offset.to_wall_ns(mono) for mono in times]
    assert walls == sorted(walls)
    assert walls[-1] - walls[0] == times[-1] - times[0]


def test_real_clocks() -> None:
    clock = Clock()
    error = clock.offset().error_ns
    before = time.time_ns()
    shown = clock.to_wall_ns(clock.monotonic_ns())
    after = time.time_ns()
    assert before - error <= shown <= after + error
    assert error < 1_000_000


def test_offset_is_measured_again_after_a_while_and_only_then() -> None:
    fake = FakeTime(0)
    clock = Clock(fake.mono, fake.wall, every_ns=1_000_000)
    first = clock.offset()
    fake.offset = 3_600_000_000_000  # somebody sets the clock
    assert clock.offset() is first
    fake.now += 1_000_000
    assert abs(clock.offset().offset_ns - fake.offset) <= clock.offset().error_ns


def test_no_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="reads"):
        measure(reads=0)
