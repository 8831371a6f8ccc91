# SPDX-License-Identifier: Apache-2.0
"""Text that others chose (container names, comms, ioctl callers) made safe to show."""

from __future__ import annotations

from typing import Final

MAX_TEXT: Final = 256


def printable(value: object, limit: int = MAX_TEXT) -> str:
    """One line of `value` that cannot move a cursor, end a line or flood a log.

    Control and format characters (C0, C1, escape, bidi overrides, surrogates) become backslash escapes; what
    is longer than the limit ends in an ellipsis.

    Args:
        value: anything; `str()` of it is shown.
        limit: most characters returned, at least 1.
    """
    text = str(value)
    shown = "".join(char if char.isprintable() else _escape(char) for char in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
