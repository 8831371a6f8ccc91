# SPDX-License-Identifier: Apache-2.0
"""`spotgpu status`: what the agent says; if none answers, what khook itself says, and that no agent does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spotgpu import admin, output
from spotgpu.errors import SpotgpuError
from spotgpu.text import printable

# Which lists there are and which of their columns come first; others follow as they come.
SECTIONS: Final = {
    "devices": ("device", "owner", "state", "healthy", "reason"),
    "owners": ("name", "state", "container", "devices", "watch", "waits_for", "holders"),
    "leases": ("device", "owner", "container", "cgroup", "state"),
    "gates": ("id", "dev", "module", "function", "classifier", "method", "state", "calls", "holds"),
    "watches": ("id", "key", "state", "holds", "held_ms", "deadline_ms", "on_hold", "release_on", "leases"),
    "holds": ("id", "watch", "comm", "pid", "tid", "ioctl", "klass", "age_ms"),
    "fences": ("cgroup", "calls"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """What was found.

    Attributes:
        agent: the agent's answer; None when none answers.
        no_agent: why not.
        khook: gates, watches, holds, fences and stats as the module has them; asked only when no agent
            answers.
        no_khook: why the module cannot be asked.
    """

    agent: Mapping[str, object] | None
    no_agent: SpotgpuError | None = None
    khook: Mapping[str, object] | None = None
    no_khook: SpotgpuError | None = None

    def to_json(self) -> str:
        """For programs: `agent` or null, and then `khook` or null, each with its error."""
        if self.agent is not None:
            return output.to_json({"agent": self.agent})
        return output.to_json(
            {
                "agent": None,
                "agent_error": _told(self.no_agent),
                "khook": self.khook,
                "khook_error": _told(self.no_khook),
            }
        )

    def to_text(self) -> str:
        """For people."""
        if self.agent is not None:
            return render(self.agent)
        lines = f"no agent answers: {printable(self.no_agent, 1024)}\n"
        if self.khook is None:
            return lines + f"khook cannot be asked: {printable(self.no_khook, 1024)}\n"
        return lines + "what khook itself says:\n\n" + render(self.khook)


def _told(error: SpotgpuError | None) -> dict[str, str | None] | None:
    if error is None:
        return None
    return {"error": error.message, "field": error.field, "remedy": error.remedy}


def gather(socket: Path) -> Found:
    """Ask the agent, then khook.

    Args:
        socket: the agent's admin socket.

    Raises:
        SpotgpuError: the agent answered, and refused.
    """
    try:
        return Found(agent=admin.ask("status", path=socket))
    except admin.NoAgent as no_agent:
        try:
            from spotgpu.khookdump import dump

            return Found(None, no_agent, khook=dump())
        except SpotgpuError as no_khook:
            return Found(None, no_agent, no_khook=no_khook)


def render(told: Mapping[str, object]) -> str:
    """Single values as one paragraph of lines, then a table for each list of objects.

    Args:
        told: as the admin socket's `status` gives it; a list that is empty is said to be so.
    """
    simple = {name: value for name, value in told.items() if not isinstance(value, list | tuple | Mapping)}
    parts = []
    if simple:
        wide = max(map(len, simple)) + 2
        parts.append(
            "".join(f"{printable(name, 32):<{wide}}{output.cell(value)}\n" for name, value in simple.items())
        )
    for name, value in told.items():
        if isinstance(value, Mapping):
            parts.append(
                f"{_title(name)}\n"
                + "".join(f"  {printable(key, 32)}  {output.cell(item)}\n" for key, item in value.items())
            )
    order = [name for name in SECTIONS if name in told] + [name for name in told if name not in SECTIONS]
    for name in order:
        value = told[name]
        if isinstance(value, list | tuple):
            parts.append(_section(name, value))
    return "\n".join(parts)


def _section(name: str, value: Sequence[object]) -> str:
    if not value:
        return f"{_title(name)}: none\n"
    rows = [item if isinstance(item, Mapping) else {"value": item} for item in value]
    return f"{_title(name)} ({len(rows)})\n{output.table(rows, SECTIONS.get(name, ()))}"


def _title(name: str) -> str:
    return printable(name, 32).replace("_", " ").upper()
