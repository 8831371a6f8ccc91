# SPDX-License-Identifier: Apache-2.0
"""Reading a mapping field by field: paths for errors, readers for values, nothing left unread."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from spotgpu_agent.errors import ConfigError

Choice = TypeVar("Choice", bound=StrEnum)
Value = TypeVar("Value")


class Fields:
    """A mapping being read: takes fields one by one, knows their paths, refuses what is left."""

    def __init__(self, data: object, path: str, what: str) -> None:
        if not isinstance(data, dict):
            raise ConfigError(f"{what} is no mapping", path or None, "write `field: value` lines")
        self.left = {str(key): value for key, value in data.items()}
        self.known: set[str] = set()
        self.path = path

    def at(self, name: str) -> str:
        """Path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, message: str, remedy: str) -> NoReturn:
        """Refuse a field."""
        raise ConfigError(message, self.at(name), remedy)

    def take(self, name: str, read: Callable[[Any], Value], default: Value | None = None) -> Value:
        """One field through its reader; ValueError of the reader becomes the field's error."""
        self.known.add(name)
        if name not in self.left:
            if default is None:
                self.wrong(name, "missing", f"add {name}")
            return default
        try:
            return read(self.left.pop(name))
        except ItemError as error:
            raise ConfigError(str(error), f"{self.at(name)}{error.item}", "correct it") from None
        except ValueError as error:
            raise ConfigError(str(error), self.at(name), "correct it") from None

    def fields(self, name: str) -> Fields:
        """A mapping below; an empty one when it is not there."""
        self.known.add(name)
        return Fields(self.left.pop(name, {}), self.at(name), name)

    def items(self, name: str, most: int) -> list[Fields]:
        """A list of mappings below, at least one."""
        self.known.add(name)
        data = self.left.pop(name, None)
        if not isinstance(data, list) or not data:
            self.wrong(name, "a list with at least one entry belongs here", f"add an entry to {name}")
        if len(data) > most:
            self.wrong(name, f"more than {most} entries", "split the node")
        return [
            Fields(item, f"{self.at(name)}[{index}]", f"{name}[{index}]") for index, item in enumerate(data)
        ]

    def done(self) -> None:
        """Refuse what nobody took: a misspelled field must not become a silent default."""
        import difflib  # only when there is something to say

        for name in self.left:
            near = difflib.get_close_matches(name, self.known, 1)
            remedy = f"did you mean {near[0]}?" if near else f"one of: {', '.join(sorted(self.known))}"
            self.wrong(name, "unknown field", remedy)


class ItemError(ValueError):
    """A value inside a list is wrong."""

    def __init__(self, item: str, message: str) -> None:
        super().__init__(message)
        self.item = item


def text(value: object) -> str:
    """A non-empty line of text."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{value!r} is no text")
    return value


def absolute(value: object) -> str:
    """An absolute path."""
    found = text(value)
    if not found.startswith("/"):
        raise ValueError(f"{found!r} is no absolute path")
    return found


def address(value: object) -> str:
    """Host and port, `127.0.0.1:9464`."""
    host, _, port = text(value).rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not like 127.0.0.1:9464")
    return f"{host}:{port}"


def choice(kind: type[Choice]) -> Callable[[object], Choice]:
    """A reader of a member of an enum, by its value."""

    def read(value: object) -> Choice:
        try:
            return kind(str(value))
        except ValueError:
            raise ValueError(f"{value!r} is none of {', '.join(kind)}") from None

    return read


def one_of(names: tuple[str, ...]) -> Callable[[object], str]:
    """A reader of one of these names."""

    def read(value: object) -> str:
        if value not in names:
            raise ValueError(f"{value!r} is none of {', '.join(names)}")
        return str(value)

    return read


def strings(value: object) -> list[str]:
    """A list of non-empty texts."""
    if not isinstance(value, list):
        raise ValueError("a list belongs here")  # noqa: TRY004 - readers raise ValueError
    for index, item in enumerate(value):
        if not isinstance(item, str) or not item.strip():
            raise ItemError(f"[{index}]", f"{item!r} is no text")
    return value
