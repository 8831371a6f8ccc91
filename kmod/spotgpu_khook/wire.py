# SPDX-License-Identifier: Apache-2.0
"""Netlink messages to and from bytes. The only import of pyroute2.

Its codec alone is used. Its asyncio socket gives up for good after the first ENOBUFS, which is what an event
socket must survive, and queues without a bound; `channel` has its own.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spotgpu_khook.abi import GENL_VERSION, Attr, Cmd


def _narrow_import() -> tuple[Any, Any]:
    """Import pyroute2's codec without the rest of it.

    `import pyroute2` executes every protocol it knows: six times as long, seconds under emulation. A package
    object with nothing but its path is enough for its submodules; it is taken away again, so that a later
    `import pyroute2` of somebody else gets all.
    """
    stub = None
    if "pyroute2" not in sys.modules:
        spec = importlib.util.find_spec("pyroute2")
        if spec is None:
            raise ModuleNotFoundError("No module named 'pyroute2'", name="pyroute2")
        stub = types.ModuleType("pyroute2")
        stub.__path__ = list(spec.submodule_search_locations or ())
        stub.__spec__ = spec
        sys.modules["pyroute2"] = stub
    try:
        from pyroute2.netlink import ctrlmsg, genlmsg
    finally:
        if stub is not None and sys.modules.get("pyroute2") is stub:
            del sys.modules["pyroute2"]
    return ctrlmsg, genlmsg


_ctrlmsg, _genlmsg = _narrow_import()

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP = 0x300
_NLM_F_CAPPED = 0x100
_NLM_F_ACK_TLVS = 0x200
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_NLMSGERR_ATTR_MSG = 1
_GENL_ID_CTRL = 0x10
_CTRL_CMD_GETFAMILY = 3
_HEADER = struct.Struct("=IHHII")
_ALIGN = 4

#: An attribute's value: a number or a string.
Value = int | str

_U64 = {
    Attr.HOLD, Attr.RETURN, Attr.CGROUP, Attr.START_TICKS, Attr.FIRST_NS, Attr.KILL_NS, Attr.KILLED_NS,
    Attr.EMPTY_NS, Attr.RELEASE_NS, Attr.AGE_NS, Attr.HEARTBEAT_AGE_NS, Attr.CALLS, Attr.LEASE_CGROUP,
    *(attr for attr in Attr if Attr.STAT_RETURNS <= attr <= Attr.STAT_EVENTS_LOST),
}  # fmt: skip
_STRINGS = {Attr.COMM, Attr.MODULE, Attr.FUNCTION}


def _kind(attr: Attr) -> str:
    if attr in (Attr.UNSPEC, Attr.PAD):
        return "none"
    if attr is Attr.FD:
        return "int32"
    if attr in _STRINGS:
        return "asciiz"
    return "uint64" if attr in _U64 else "uint32"


# A message of the family khook, as pyroute2 wants it described.
_KhookMessage: Any = type(
    "_KhookMessage",
    (_genlmsg,),
    {"prefix": "KHOOK_A_", "nla_map": tuple((f"KHOOK_A_{attr.name}", _kind(attr)) for attr in Attr)},
)
_ATTRS = {f"KHOOK_A_{attr.name}": attr for attr in Attr}


@dataclass(frozen=True, slots=True)
class Family:
    """What the kernel says of a generic netlink family; `groups`: multicast group name -> id."""

    id: int
    version: int
    groups: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ack:
    """The end of an answer: `errno` is 0 or positive, `message` the kernel's sentence, if any."""

    sequence: int
    errno: int
    message: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a family, its attributes still encoded: `data` with its netlink header."""

    sequence: int
    family: int
    data: bytes


class Attributes:
    """The attributes of a message, by `Attr`."""

    def __init__(self, pairs: list[tuple[Attr, Value]]) -> None:
        self._pairs = pairs
        self._first = dict(reversed(pairs))

    def __contains__(self, attr: Attr) -> bool:
        return attr in self._first

    def number(self, attr: Attr) -> int:
        """Return a number. Raises KeyError if the attribute is not there."""
        value = self._first[attr]
        if not isinstance(value, int):
            raise TypeError(f"{attr.name} is no number")
        return value

    def text(self, attr: Attr) -> str:
        """Return a string. Raises KeyError if the attribute is not there."""
        return str(self._first[attr])

    def numbers(self, attr: Attr) -> tuple[int, ...]:
        """Return every number of an attribute that may be repeated."""
        return tuple(value for name, value in self._pairs if name is attr and isinstance(value, int))


def encode_command(family: int, cmd: Cmd, sequence: int, flags: int, attrs: dict[Attr, Value]) -> bytes:
    """Return the bytes of one command of khook."""
    message = _KhookMessage()
    message["cmd"] = int(cmd)
    message["version"] = GENL_VERSION
    message["attrs"] = [(f"KHOOK_A_{attr.name}", value) for attr, value in attrs.items()]
    return _encode(message, family, sequence, flags)


def encode_get_family(name: str, sequence: int) -> bytes:
    """Return the bytes of the question for a family's number."""
    message = _ctrlmsg()
    message["cmd"] = _CTRL_CMD_GETFAMILY
    message["version"] = 1
    message["attrs"] = [("CTRL_ATTR_FAMILY_NAME", name)]
    return _encode(message, _GENL_ID_CTRL, sequence, NLM_F_REQUEST | NLM_F_ACK)


def _encode(message: Any, family: int, sequence: int, flags: int) -> bytes:
    message["header"]["type"] = family
    message["header"]["flags"] = flags
    message["header"]["sequence_number"] = sequence
    # The kernel fills in the sender's port.
    message["header"]["pid"] = 0
    message.encode()
    return bytes(message.data)


def decode_family(message: Message) -> Family:
    """Return the answer to `encode_get_family`."""
    decoded = _ctrlmsg(message.data)
    decoded.decode()
    groups = {
        group.get_attr("CTRL_ATTR_MCAST_GRP_NAME"): group.get_attr("CTRL_ATTR_MCAST_GRP_ID")
        for group in decoded.get_attr("CTRL_ATTR_MCAST_GROUPS") or ()
    }
    return Family(decoded.get_attr("CTRL_ATTR_FAMILY_ID"), decoded.get_attr("CTRL_ATTR_VERSION"), groups)


def decode_attributes(message: Message) -> Attributes:
    """Return the attributes of a message of khook. One that a newer module added is left out."""
    decoded = _KhookMessage(message.data)
    decoded.decode()
    return Attributes([(_ATTRS[name], value) for name, value in decoded["attrs"] if name in _ATTRS])


def split(datagram: bytes) -> Iterator[Message | Ack]:
    """Return the messages of one datagram."""
    offset = 0
    while offset + _HEADER.size <= len(datagram):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, offset)
        if not _HEADER.size <= length <= len(datagram) - offset:
            raise ValueError(f"a netlink message of {length} bytes in a datagram of {len(datagram)}")
        data = datagram[offset : offset + length]
        if kind == _NLMSG_ERROR:
            yield _decode_error(data, flags, sequence)
        elif kind == _NLMSG_DONE:
            (code,) = struct.unpack_from("=i", data, _HEADER.size) if length > _HEADER.size else (0,)
            yield Ack(sequence, -code if code < 0 else 0, None)
        else:
            yield Message(sequence, kind, data)
        offset += _aligned(length)


def _decode_error(data: bytes, flags: int, sequence: int) -> Ack:
    (code,) = struct.unpack_from("=i", data, _HEADER.size)
    if not flags & _NLM_F_ACK_TLVS:
        return Ack(sequence, -code, None)
    # After the code comes the request: its header alone if the answer is capped.
    request = _HEADER.size + 4
    (length, *_) = _HEADER.unpack_from(data, request)
    offset = request + (_HEADER.size if flags & _NLM_F_CAPPED else _aligned(length))
    while offset + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, offset)
        if size < 4:
            break
        if kind == _NLMSGERR_ATTR_MSG:
            text = data[offset + 4 : offset + size].rstrip(b"\0").decode("utf-8", "replace")
            return Ack(sequence, -code, text)
        offset += _aligned(size)
    return Ack(sequence, -code, None)


def _aligned(length: int) -> int:
    return (length + _ALIGN - 1) & -_ALIGN
