# SPDX-License-Identifier: Apache-2.0
"""What a suite may not leave behind in its guest."""

from __future__ import annotations

from pathlib import Path

OURS = ("khook", "nvsim")


def blocked_tasks() -> list[str]:
    """Every task in uninterruptible sleep at this moment, as `comm(tid)`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        begin, end = text.index("("), text.rindex(")")
        if text[end + 2] == "D":
            found.append(f"{text[begin + 1 : end]}({stat.parent.name})")
    return found


def loaded_modules() -> list[str]:
    """Which of our modules are loaded. One that somebody still refers to can't be unloaded."""
    names = [line.split()[0] for line in Path("/proc/modules").read_text().splitlines()]
    return [name for name in names if name in OURS]
