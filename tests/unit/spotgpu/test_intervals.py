# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spotgpu.intervals import partition, union_ns

_ns = st.integers(0, 40)


@given(st.lists(st.tuples(_ns, _ns)), _ns, _ns)
def test_union_against_brute_force(intervals: Any, start: Any, end: Any) -> None:
    covered = {at for begin, until in intervals for at in range(begin, until)}
    assert union_ns(intervals, start, end) == len(covered & set(range(start, end)))


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63), st.integers(-(2**63), 2**63))))
def test_union_is_never_negative_nor_more_than_the_window(intervals: Any) -> None:
    assert 0 <= union_ns(intervals, -(2**60), 2**60) <= 2**61


@given(st.lists(st.tuples(_ns, _ns), max_size=8), _ns, _ns)
def test_partition_against_brute_force(intervals: list[tuple[int, int]], start: int, end: int) -> None:
    pieces = list(partition(intervals, start, end))
    assert all(before[2] == after[1] and before[0] != after[0] for before, after in pairwise(pieces))
    owners = {at: owner for owner, begin, until in pieces for at in range(begin, until)}
    assert set(owners) == set(range(start, end))
    for at, owner in owners.items():
        covering = [n for n, (begin, until) in enumerate(intervals) if begin <= at < until]
        assert owner == (covering[0] if covering else None)
