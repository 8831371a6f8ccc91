# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are given together."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.placement import Card, prefer


def machine(numa: list[int], boards: list[int] | None = None) -> dict[str, Card]:
    """Cards a, b, c, …: the NUMA node of each, and the baseboard whose cards NVLink joins."""
    names = "abcdefghijklmnop"[: len(numa)]
    boards = boards or list(range(len(numa)))
    return {
        name: Card(
            name,
            i,
            i,
            numa[i],
            frozenset(other for j, other in enumerate(names) if j != i and boards[j] == boards[i]),
        )
        for i, name in enumerate(names)
    }


TWO_NODES = machine([0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        ("abcdefgh", "", 2, "ab"),
        ("abcdefgh", "g", 2, "eg"),
        ("abcdefgh", "", 4, "abcd"),
        ("aefgh", "", 4, "efgh"),
        ("abcdgh", "", 2, "gh"),  # the four of node 0 stay whole
        ("abcdh", "", 1, "h"),
        ("bd", "bd", 2, "bd"),
        ("abc", "", 0, ""),
    ],
)
def test_a_numa_node_is_kept_together(available: str, must: str, size: int, expected: str) -> None:
    assert "".join(sorted(prefer(TWO_NODES, available, list(must), size))) == expected


def test_nvlink_counts_more_than_numa() -> None:
    cards = machine([0, 0, 1, 1], boards=[0, 1, 0, 1])
    assert prefer(cards, "abcd", [], 2) == ["a", "c"]
    assert prefer(cards, "abcd", ["b"], 2) == ["b", "d"]


def test_an_unknown_numa_node_is_near_nothing() -> None:
    assert prefer(machine([-1, -1, 0, 0]), "abcd", [], 2) == ["c", "d"]


@pytest.mark.parametrize(("available", "must", "size"), [("ab", "", 3), ("abc", "ab", 1)])
def test_what_cannot_be_is_refused(available: str, must: str, size: int) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        prefer(TWO_NODES, available, list(must), size)


def test_a_stranger_is_refused() -> None:
    with pytest.raises(KeyError):
        prefer(TWO_NODES, "az", [], 1)


@settings(deadline=None)  # the host may be busy with guests
@given(st.data())
def test_the_set_is_always_what_was_asked_for(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 16))
    cards = machine(
        data.draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)),
        data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)),
    )
    available = data.draw(st.lists(st.sampled_from(sorted(cards)), unique=True, min_size=1))
    must = data.draw(st.lists(st.sampled_from(available), unique=True))
    size = data.draw(st.integers(len(must), len(available)))
    chosen = prefer(cards, available, must, size)
    assert len(set(chosen)) == len(chosen) == size
    assert set(must) <= set(chosen) <= set(available)
