# SPDX-License-Identifier: Apache-2.0
"""Messages to bytes and back, and what is not a message."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from spotgpu_khook.abi import Attr, Cmd
from spotgpu_khook.wire import (
    NLM_F_ACK,
    NLM_F_REQUEST,
    Ack,
    Message,
    Value,
    decode_attributes,
    encode_command,
    split,
)

FAMILY = 0x21


def _decoded(data: bytes) -> Message:
    (message,) = split(data)
    assert isinstance(message, Message)
    return message


def test_a_command_is_a_netlink_message_with_its_attributes() -> None:
    data = encode_command(
        FAMILY, Cmd.LEASE, 7, NLM_F_REQUEST | NLM_F_ACK, {Attr.WATCH: 3, Attr.CGROUP: 2**40}
    )
    length, family, flags, sequence, port = struct.unpack_from("=IHHII", data)
    assert (length, family, flags, sequence, port) == (len(data), FAMILY, 5, 7, 0)
    assert struct.unpack_from("=BBH", data, 16) == (Cmd.LEASE, 1, 0)
    assert struct.unpack_from("=HHI", data, 20) == (8, Attr.WATCH, 3)
    assert struct.unpack_from("=HHQ", data, 28) == (12, Attr.CGROUP, 2**40)
    assert len(data) == 40


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {Attr.FD: 5, Attr.CLASSIFIER: 1},
        {Attr.COMM: "nvcall", Attr.PID: 1, Attr.FIRST_NS: 2**63},
        {
            attr: 1
            for attr in Attr
            if attr not in (Attr.UNSPEC, Attr.PAD, Attr.COMM, Attr.MODULE, Attr.FUNCTION)
        },
    ],
)
def test_attributes_come_back_as_they_went(attrs: dict[Attr, Value]) -> None:
    message = _decoded(encode_command(FAMILY, Cmd.EVENT, 0, 0, attrs))
    assert (message.family, message.sequence) == (FAMILY, 0)
    decoded = decode_attributes(message)
    for attr, value in attrs.items():
        assert (decoded.text(attr) if isinstance(value, str) else decoded.number(attr)) == value
    assert all((attr in decoded) == (attr in attrs) for attr in Attr)


def _attr(number: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), number) + data + b"\0" * (-len(data) % 4)


def _message(body: bytes) -> bytes:
    return (
        struct.pack("=IHHII", 20 + len(body), FAMILY, 0, 0, 0) + struct.pack("=BBH", Cmd.EVENT, 1, 0) + body
    )


def test_an_attribute_may_be_repeated_and_an_unknown_one_is_left_out() -> None:
    spots = (11, 12, 13)
    body = b"".join(_attr(Attr.LEASE_CGROUP, struct.pack("=Q", spot)) for spot in spots)
    decoded = decode_attributes(_decoded(_message(_attr(200, b"later") + body)))
    assert decoded.numbers(Attr.LEASE_CGROUP) == spots
    assert decoded.number(Attr.LEASE_CGROUP) == spots[0]
    with pytest.raises(KeyError):
        decoded.number(Attr.WATCH)


def _error(code: int, flags: int, request: bytes, tlvs: bytes) -> bytes:
    body = struct.pack("=i", -code) + request + tlvs
    return struct.pack("=IHHII", 16 + len(body), 2, flags, 9, 0) + body


@pytest.mark.parametrize("capped", [True, False])
def test_an_error_has_the_kernels_sentence(capped: bool) -> None:
    request = encode_command(FAMILY, Cmd.RELEASE, 9, NLM_F_REQUEST, {Attr.WATCH: 1})
    tlvs = _attr(2, struct.pack("=I", 20)) + _attr(1, b"khook: no such watch\0")
    (ack,) = split(_error(2, 0x200 | (0x100 if capped else 0), request[:16] if capped else request, tlvs))
    assert ack == Ack(9, 2, "khook: no such watch")


def test_an_error_without_a_sentence_and_the_end_of_a_dump() -> None:
    request = encode_command(FAMILY, Cmd.RELEASE, 9, NLM_F_REQUEST, {})
    assert list(split(_error(1, 0x100, request[:16], b""))) == [Ack(9, 1, None)]
    assert list(split(_error(0, 0x100, request[:16], b""))) == [Ack(9, 0, None)]
    done = struct.pack("=IHHIIi", 20, 3, 2, 9, 0, 0)
    failed = struct.pack("=IHHIIi", 20, 3, 2, 9, 0, -12)
    assert list(split(done + failed)) == [Ack(9, 0, None), Ack(9, 12, None)]


def test_several_messages_in_a_datagram_are_told_apart() -> None:
    data = b"".join(encode_command(FAMILY, Cmd.EVENT, 0, 0, {Attr.COMM: "x" * size}) for size in range(5))
    # Each begins on a multiple of four.
    padded = b"".join(
        encode_command(FAMILY, Cmd.EVENT, 0, 0, {Attr.COMM: "x" * size}).ljust(
            (len(encode_command(FAMILY, Cmd.EVENT, 0, 0, {Attr.COMM: "x" * size})) + 3) & -4, b"\0"
        )
        for size in range(5)
    )
    texts = [decode_attributes(one).text(Attr.COMM) for one in split(padded) if isinstance(one, Message)]
    assert texts == ["x" * size for size in range(5)]
    assert len(data) <= len(padded)


@pytest.mark.parametrize("length", [0, 15, 21])
def test_a_length_that_lies_is_refused(length: int) -> None:
    data = struct.pack("=IHHII", length, FAMILY, 0, 0, 0) + b"\0" * 4
    with pytest.raises(ValueError, match="a netlink message of"):
        list(split(data))


def test_the_codec_is_imported_without_the_rest_of_pyroute2() -> None:
    code = (
        "import sys, spotgpu_khook.client as c\n"
        "assert 'pyroute2' not in sys.modules and 'pyroute2.netlink' in sys.modules\n"
        "assert not any('iproute' in m or 'ndb' in m for m in sys.modules)\n"
        "import pyroute2\n"
        "assert pyroute2.IPRoute\n"
    )
    # The whole of pyroute2 warns of its own on newer Pythons: not what is tried here.
    subprocess.run([sys.executable, "-c", code], check=True, env=_environment())


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}
