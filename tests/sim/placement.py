# SPDX-License-Identifier: Apache-2.0
"""Which GPUs to give together. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

_NVLINK = 10
_SAME_NUMA = 3


@dataclass(frozen=True)
class Card:
    """A GPU: NVML's index, the minor of its node, its NUMA node (-1: unknown), the UUIDs NVLink reaches."""

    uuid: str
    index: int
    minor: int
    numa: int
    links: frozenset[str] = frozenset()


def prefer(
    cards: Mapping[str, Card], available: Collection[str], must: Collection[str], size: int
) -> list[str]:
    """Return `size` of the `available` UUIDs, those in `must` first, that are near each other.

    Nearness is NVLink, then a common NUMA node. Of equally near sets the one wins that breaks up the emptiest
    NUMA node (a whole node is kept for who needs one), then the one of lower indices. Raises ValueError when
    there is no such set, and KeyError for an unknown UUID.
    """
    chosen = [cards[uuid] for uuid in must]
    rest = [cards[uuid] for uuid in available if uuid not in must]
    if not len(chosen) <= size <= len(chosen) + len(rest):
        raise ValueError(f"cannot take {size} of {len(available)} devices with {len(chosen)} that must be in")
    starts = [chosen] if chosen or not size else [[card] for card in rest]
    sets = [_grow(start, [card for card in rest if card not in start], size) for start in starts]
    free = _free_by_numa(chosen + rest)
    best = min(
        sets, key=lambda cards: (-_nearness(cards), _breakage(cards, free), sorted(c.index for c in cards))
    )
    return [card.uuid for card in best]


def _grow(chosen: list[Card], rest: list[Card], size: int) -> list[Card]:
    """Add the nearest card until there are enough: sixteen cards are too many to try every set."""
    chosen, rest = list(chosen), list(rest)
    while len(chosen) < size:
        nearest = max(rest, key=lambda card: (sum(_pair(card, other) for other in chosen), -card.index))
        chosen.append(nearest)
        rest.remove(nearest)
    return chosen


def _pair(a: Card, b: Card) -> int:
    same_numa = a.numa == b.numa >= 0
    return _NVLINK * (b.uuid in a.links) + _SAME_NUMA * same_numa


def _nearness(cards: list[Card]) -> int:
    return sum(_pair(a, b) for at, a in enumerate(cards) for b in cards[at + 1 :])


def _free_by_numa(cards: list[Card]) -> dict[int, int]:
    free: dict[int, int] = {}
    for card in cards:
        free[card.numa] = free.get(card.numa, 0) + 1
    return free


def _breakage(cards: list[Card], free: Mapping[int, int]) -> int:
    """How many cards stay behind on the nodes that are taken from."""
    return sum(free[numa] for numa in {card.numa for card in cards}) - len(cards)
