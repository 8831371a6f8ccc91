# SPDX-License-Identifier: Apache-2.0
"""What commands print: tables for people, JSON for programs. Text from outside is made printable here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from spotgpu.errors import SpotgpuError
from spotgpu.text import printable

MAX_CELL: Final = 64


def to_json(value: object) -> str:
    """A value as indented JSON and a newline; what JSON does not have becomes text."""
    return json.dumps(value, indent=2, default=str) + "\n"


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ()) -> str:
    """Rows as aligned columns under upper-case heads; empty text when there are no rows.

    Args:
        rows: cells by column; a missing one is shown as `-`.
        columns: which columns come first, in this order; others follow as they appear. Those that no row has
            are left out.
    """
    known = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in columns if name in known] + [name for name in known if name not in columns]
    if not names:
        return ""
    lines = [[printable(name, MAX_CELL).upper() for name in names]]
    lines += [[cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(names))]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def cell(value: object) -> str:
    """One value in one line: `-` for nothing, yes and no, lists with commas."""
    if value is None or value == "" or value == [] or value == ():
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(",".join(str(item) for item in value), MAX_CELL)
    if isinstance(value, Mapping):
        return printable(",".join(f"{name}={item}" for name, item in value.items()), MAX_CELL)
    return printable(value, MAX_CELL)


def error_text(error: SpotgpuError, command: str, as_json: bool) -> str:
    """The one line of an error: field, what is wrong, remedy.

    Args:
        error: what went wrong.
        command: the command that failed, `spotgpu trace`.
        as_json: as a JSON object, for programs.
    """
    if as_json:
        told = {"error": error.message, "field": error.field, "remedy": error.remedy}
        return json.dumps(told) + "\n"
    return printable(f"{command}: {error}", 4096) + "\n"


def width(stream: TextIO) -> int:
    """Columns to use on a stream: the terminal's, 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns if stream.isatty() else 80


def draws(stream: TextIO, text: str) -> bool:
    """Whether a stream's encoding has these characters."""
    try:
        text.encode(getattr(stream, "encoding", None) or sys.getdefaultencoding())
    except (UnicodeEncodeError, LookupError):
        return False
    return True
