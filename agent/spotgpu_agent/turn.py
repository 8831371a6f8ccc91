# SPDX-License-Identifier: Apache-2.0
"""One turn of the core: an owner's state being turned over by one event. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from spotgpu_agent.commands import Command, Reason, Unfence, Unfollow, Unlease
from spotgpu_agent.model import Drain, HandBack, LeaseState, OwnerState, Spot


@dataclass(slots=True)
class Turn:
    """Collects what one event changes, asks for and gives as reasons.

    Attributes:
        o: the owner's state so far in this turn.
        now: ns, CLOCK_MONOTONIC.
    """

    o: OwnerState
    now: int
    commands: list[Command] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)

    def set(self, **changes: Any) -> None:
        """Change fields of the owner's state."""
        self.o = replace(self.o, **changes)

    def do(self, *commands: Command) -> None:
        """Ask for effects, in this order."""
        self.commands += commands

    def why(self, code: str, text: str, *, alert: bool = False) -> None:
        """Give a reason."""
        self.reasons.append(Reason(self.o.name, code, text, alert))

    @property
    def drain(self) -> Drain:
        """The drain under way; only asked for where there is one."""
        if self.o.drain is None:
            raise AssertionError("no drain")
        return self.o.drain

    @property
    def handback(self) -> HandBack:
        """The hand-back under way; only asked for where there is one."""
        if self.o.handback is None:
            raise AssertionError("no hand-back")
        return self.o.handback

    def set_drain(self, **changes: Any) -> None:
        """Change fields of the drain."""
        self.set(drain=replace(self.drain, **changes))

    def set_handback(self, **changes: Any) -> None:
        """Change fields of the hand-back."""
        self.set(handback=replace(self.handback, **changes))

    def set_spots(self, change: Callable[[Spot], Spot | None]) -> None:
        """Change every spot container; None drops it."""
        changed = [change(spot) for spot in self.o.spots]
        self.set(spots=tuple(spot for spot in changed if spot is not None))

    def set_spot(self, cgroup: int, **changes: Any) -> None:
        """Change the spot container with this cgroup id."""
        self.set_spots(lambda spot: replace(spot, **changes) if spot.container.cgroup == cgroup else spot)

    def forget(self, spot: Spot) -> None:
        """Undo in the kernel what was done for a spot container."""
        cgroup = spot.container.cgroup
        if spot.lease != LeaseState.NONE and self.o.watch is not None:
            self.do(Unlease(self.o.name, self.o.watch, cgroup))
        if spot.fenced:
            self.do(Unfence(self.o.name, cgroup))
        self.do(Unfollow(self.o.name, cgroup))
