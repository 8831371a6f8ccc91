# SPDX-License-Identifier: Apache-2.0
"""The root of every error that a person is meant to act on.

    SpotgpuError            one line: what is wrong, in which field, what to do
    └── UsageError          the request itself is wrong: exit status 2

Rooms add their own branches below SpotgpuError.
"""

from __future__ import annotations


class SpotgpuError(Exception):
    """Something a person can act on.

    Args:
        message: what is wrong, one sentence, no full stop needed.
        field: where: a config path (`owners[0].devices[1]`), an option (`--last`) or a file; None when it is
            nowhere.
        remedy: what to do about it, an imperative sentence; None when there is nothing to do.
    """

    exit_status = 1

    def __init__(self, message: str, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.remedy = remedy

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"{where}{self.message}{remedy}"


class UsageError(SpotgpuError):
    """Bad input: nothing was done, the exit status is 2."""

    exit_status = 2
