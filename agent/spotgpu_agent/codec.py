# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses to JSON and back, strictly: what does not fit the type hints is refused, never guessed.

Knows what the agent's records are made of: dataclasses, str, int, bool, None, StrEnum, `tuple[X, ...]`, fixed
tuples and unions of those (a union of dataclasses is told apart by a `type` tag).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

TAG = "type"


class CodecError(ValueError):
    """The data is not of the wanted type; the message starts with the path of the field."""


def encode(value: Any) -> Any:
    """Plain JSON values for a record; a dataclass becomes an object without a tag."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value


def encode_tagged(value: Any) -> dict[str, Any]:
    """The same for a member of a union of dataclasses, with its class name under `type`."""
    return {TAG: type(value).__name__, **encode(value)}


def decode(hint: Any, data: Any, path: str = "") -> Any:
    """The value of a type from plain JSON values.

    Args:
        hint: a dataclass, or any type of the module's docstring.
        data: as from json.loads.
        path: of `data`, for errors.

    Raises:
        CodecError: the data does not fit.
    """
    if isinstance(hint, type) and is_dataclass(hint):
        return _decode_dataclass(hint, data, path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _decode_enum(hint, data, path)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _decode_tuple(typing.get_args(hint), data, path)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(hint), data, path)
    if hint is types.NoneType or hint is None:
        return _check(data is None, None, path, "null", data)
    if hint in (str, int, bool):
        return _check(type(data) is hint, data, path, hint.__name__, data)
    raise TypeError(f"{path or 'value'}: no codec for {hint!r}")


def _check(fits: bool, value: Any, path: str, wanted: str, data: Any) -> Any:
    if not fits:
        raise CodecError(f"{path or 'value'}: {type(data).__name__} where {wanted} belongs")
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode_dataclass(cls: type, data: Any, path: str) -> Any:
    _check(isinstance(data, dict), None, path, cls.__name__, data)
    hints = _hints(cls)
    unknown = set(data) - set(hints) - {TAG}
    if unknown:
        raise CodecError(f"{path or cls.__name__}: unknown field {min(unknown)}")
    values = {}
    for field in fields(cls):
        where = f"{path}.{field.name}" if path else field.name
        if field.name in data:
            values[field.name] = decode(hints[field.name], data[field.name], where)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise CodecError(f"{where}: missing")
    make: Callable[..., Any] = cls
    return make(**values)


def _decode_enum(cls: type[Enum], data: Any, path: str) -> Enum:
    try:
        return cls(data)
    except ValueError:
        raise CodecError(f"{path or 'value'}: {data!r} is no {cls.__name__}") from None


def _decode_tuple(args: tuple[Any, ...], data: Any, path: str) -> tuple[Any, ...]:
    _check(isinstance(data, list), None, path, "a list", data)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(decode(args[0], item, f"{path}[{index}]") for index, item in enumerate(data))
    _check(len(data) == len(args), None, path, f"a list of {len(args)}", data)
    return tuple(
        decode(arg, item, f"{path}[{index}]")
        for index, (arg, item) in enumerate(zip(args, data, strict=True))
    )


def _decode_union(args: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and types.NoneType in args:
        return None
    members = [arg for arg in args if arg is not types.NoneType]
    if len(members) == 1:
        return decode(members[0], data, path)
    _check(isinstance(data, dict), None, path, "a tagged object", data)
    for member in members:
        if member.__name__ == data.get(TAG):
            return decode(member, data, path)
    raise CodecError(f"{path or 'value'}: unknown type {data.get(TAG)!r}")
