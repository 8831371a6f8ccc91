# SPDX-License-Identifier: Apache-2.0
"""Durations and sizes as people write them in a configuration: `10s`, `500ms`, `64MiB`. Pure."""

from __future__ import annotations

import re
from typing import Final

_DURATIONS: Final = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_SIZES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def duration_ns(value: object) -> int:
    """Nanoseconds of `10s`, `1.5s`, `500ms`, `5m`, `1h`.

    Raises:
        ValueError: with a sentence for a person; a number without a unit is refused, except 0.
    """
    return _parse(value, _DURATIONS, "10s, 500ms or 5m")


def size_bytes(value: object) -> int:
    """Bytes of `64MiB`, `2GiB`, `512KiB`, `4096B`.

    Raises:
        ValueError: as duration_ns.
    """
    return _parse(value, _SIZES, "64MiB or 2GiB")


def _parse(value: object, units: dict[str, int], example: str) -> int:
    if value in (0, "0") and not isinstance(value, bool):
        return 0
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2] not in units:
        raise ValueError(f"{value!r} is not like {example}")
    return round(float(found[1]) * units[found[2]])
