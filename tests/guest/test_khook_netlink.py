# SPDX-License-Identifier: Apache-2.0
"""The protocol: strict, closed to the unprivileged, and unimpressed by nonsense."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotgpu_khook.abi import GENL_NAME, Attr, Classifier, Cmd, Limit, WatchState
from spotgpu_khook.client import Khook
from spotgpu_khook.ids import cgroup_id
from spotgpu_khook.wire import (
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    Ack,
    Message,
    Value,
    decode_attributes,
    decode_family,
    encode_command,
    encode_get_family,
    split,
)
from tests.guestlib.khook import Rig, agent, arm, held, in_loop, rig, watch

SOL_NETLINK, NETLINK_GENERIC, NETLINK_EXT_ACK, NETLINK_CAP_ACK = 270, 16, 11, 10
#: Chosen at random once; what it makes is the same in every run.
SEED = 20261130
FUZZED = 10_000


@pytest.fixture(scope="module", name="loaded")
def _loaded() -> Iterator[Rig]:
    with rig() as loaded:
        yield loaded


@pytest.fixture(name="rig")
def _rig(loaded: Rig) -> Iterator[Rig]:
    yield loaded
    loaded.tidy()


class Raw:
    """A socket that sends whatever it is given."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        self.socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self.socket.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        self.socket.settimeout(10)
        self.sequence = 0
        (answer, *_) = self.talk(lambda sequence: encode_get_family(GENL_NAME, sequence))
        assert isinstance(answer, Message)
        self.family = decode_family(answer)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def talk(self, make: object) -> list[Message | Ack]:
        """Send one message, and return its answer up to the end."""
        assert callable(make)
        self.sequence += 1
        self.socket.send(make(self.sequence))
        answer: list[Message | Ack] = []
        while not answer or not isinstance(answer[-1], Ack):
            for item in split(self.socket.recv(1 << 18)):
                answer += [item] if item.sequence == self.sequence else []
        return answer

    def command(self, cmd: int, attrs: dict[Attr, Value], flags: int = 0) -> Ack:
        """Send a command of khook, and return the end of its answer."""

        def make(sequence: int) -> bytes:
            return encode_command(
                self.family.id, Cmd(cmd), sequence, NLM_F_REQUEST | NLM_F_ACK | flags, attrs
            )

        end = self.talk(make)[-1]
        assert isinstance(end, Ack)
        return end

    def bytes(
        self, cmd: int, payload: bytes, flags: int = NLM_F_REQUEST | NLM_F_ACK, version: int = 1
    ) -> Ack:
        """Send a command with a payload of any bytes."""

        def make(sequence: int) -> bytes:
            body = struct.pack("=BBH", cmd, version, 0) + payload
            return struct.pack("=IHHII", 16 + len(body), self.family.id, flags, sequence, 0) + body

        end = self.talk(make)[-1]
        assert isinstance(end, Ack)
        return end


@pytest.fixture
def raw(rig: Rig) -> Iterator[Raw]:
    with Raw() as opened:
        yield opened


def _attr(number: int, data: bytes) -> bytes:
    padding = b"\0" * (-len(data) % 4)
    return struct.pack("=HH", 4 + len(data), number) + data + padding


@pytest.mark.parametrize(
    ("cmd", "attrs", "number", "saying"),
    [
        (Cmd.ARM, {}, errno.EINVAL, "an fd is needed"),
        (Cmd.ARM, {Attr.FD: 0}, errno.EINVAL, "a classifier is needed"),
        (Cmd.ARM, {Attr.FD: -1, Attr.CLASSIFIER: Classifier.ANY}, errno.ERANGE, "integer out of range"),
        (Cmd.ARM, {Attr.FD: 0, Attr.CLASSIFIER: 0}, errno.ERANGE, "integer out of range"),
        (Cmd.ARM, {Attr.FD: 0, Attr.CLASSIFIER: 4}, errno.ERANGE, "integer out of range"),
        (Cmd.DISARM, {}, errno.EINVAL, "a gate or an fd"),
        (Cmd.DISARM, {Attr.FD: 0, Attr.GATE: 1}, errno.EINVAL, "a gate or an fd"),
        (Cmd.DETECT, {}, errno.EINVAL, "name one key"),
        (Cmd.DETECT, {Attr.CGROUP: 1, Attr.PIDNS: 1}, errno.EINVAL, "name one key"),
        (Cmd.DETECT, {Attr.PID: 1}, errno.EINVAL, "go together"),
        (Cmd.DETECT, {Attr.CGROUP: 1, Attr.START_TICKS: 1}, errno.EINVAL, "go together"),
        (Cmd.DETECT, {Attr.CGROUP: 1, Attr.DEADLINE_MS: 0}, errno.ERANGE, "integer out of range"),
        (Cmd.DETECT, {Attr.CGROUP: 1, Attr.DEADLINE_MS: 600001}, errno.ERANGE, "integer out of range"),
        (Cmd.DETECT, {Attr.CGROUP: 1, Attr.ON_HOLD: 2}, errno.ERANGE, "integer out of range"),
        (Cmd.DETECT, {Attr.CGROUP: 1, Attr.WATCH: 1}, errno.EINVAL, "Unsupported attribute"),
        (Cmd.UNDETECT, {}, errno.EINVAL, "a watch is needed"),
        (Cmd.UNDETECT, {Attr.WATCH: 0}, errno.ERANGE, "integer out of range"),
        (Cmd.UNDETECT, {Attr.WATCH: 99}, errno.ENOENT, "no such watch"),
        (Cmd.LEASE, {Attr.WATCH: 99}, errno.EINVAL, "a cgroup is needed"),
        (Cmd.LEASE, {Attr.WATCH: 99, Attr.CGROUP: 1}, errno.ENOENT, "no such watch"),
        (Cmd.UNLEASE, {Attr.CGROUP: 1}, errno.EINVAL, "a watch is needed"),
        (Cmd.FENCE, {}, errno.EINVAL, "a cgroup is needed"),
        (Cmd.UNFENCE, {Attr.CGROUP: 1}, errno.ENOENT, "not fenced"),
        (Cmd.RELEASE, {}, errno.EINVAL, "a watch or a hold"),
        (Cmd.RELEASE, {Attr.WATCH: 1, Attr.HOLD: 1}, errno.EINVAL, "a watch or a hold"),
        (Cmd.RELEASE, {Attr.HOLD: 1, Attr.RETURN: 1}, errno.EINVAL, "goes with a watch"),
        (Cmd.RELEASE, {Attr.HOLD: 1}, errno.ENOENT, "no such hold"),
        (Cmd.EVICT, {}, errno.EINVAL, "a watch is needed"),
        (Cmd.EVICT, {Attr.WATCH: 99}, errno.ENOENT, "no such watch"),
        (Cmd.HEARTBEAT, {}, errno.ENOTCONN, "attach first"),
        (Cmd.HEARTBEAT, {Attr.WATCH: 1}, errno.EINVAL, "Unknown attribute type"),
        (Cmd.ATTACH, {Attr.ORPHAN_MS: 600001}, errno.ERANGE, "integer out of range"),
        (Cmd.GET_STATS, {Attr.WATCH: 1}, errno.EINVAL, "Unknown attribute type"),
    ],
)
def test_a_refusal_says_why(raw: Raw, cmd: Cmd, attrs: dict[Attr, Value], number: int, saying: str) -> None:
    ack = raw.command(cmd, attrs)
    assert ack.errno == number, ack
    assert ack.message is not None
    assert saying in ack.message


def test_parsing_is_strict(raw: Raw) -> None:
    good = _attr(Attr.WATCH, struct.pack("=I", 99))
    assert raw.bytes(Cmd.UNDETECT, good).errno == errno.ENOENT
    for payload, number in (
        (_attr(Attr.WATCH, b"\0"), errno.ERANGE),  # too short
        (_attr(Attr.WATCH, struct.pack("=Q", 99)), errno.EINVAL),  # too long
        (_attr(200, b"\0" * 4) + good, errno.EINVAL),  # unknown
        (good + b"\1\2\3", errno.EINVAL),  # trailing bytes
        (_attr(Attr.PAD, b"") + good, errno.EINVAL),
        (struct.pack("=HH", 400, Attr.WATCH), errno.EINVAL),  # longer than the message
    ):
        assert raw.bytes(Cmd.UNDETECT, payload).errno in (number, errno.EINVAL), payload
    assert (
        raw.bytes(Cmd.UNDETECT, good, NLM_F_REQUEST | NLM_F_ACK | 0x800).errno == errno.EINVAL
    )  # stray flag
    for cmd in (Cmd.UNSPEC, Cmd.EVENT, 200):
        assert raw.bytes(cmd, b"").errno == errno.EOPNOTSUPP
    assert raw.bytes(Cmd.GET_WATCH, b"", NLM_F_REQUEST | NLM_F_ACK).errno == errno.EOPNOTSUPP  # no dump
    assert raw.bytes(Cmd.ATTACH, b"", NLM_F_REQUEST | NLM_F_DUMP).errno == errno.EOPNOTSUPP
    assert raw.bytes(Cmd.GET_WATCH, good, NLM_F_REQUEST | NLM_F_DUMP).errno == errno.EINVAL


# Who may talk.

_COMMANDS = [*(cmd for cmd in Cmd if cmd not in (Cmd.UNSPEC, Cmd.EVENT))]


def _flags(cmd: Cmd) -> int:
    dump = cmd in (Cmd.GET_GATE, Cmd.GET_WATCH, Cmd.GET_HOLD, Cmd.GET_FENCE)
    return NLM_F_REQUEST | (NLM_F_DUMP if dump else NLM_F_ACK)


def _ask_all() -> list[int]:
    """Send every command without attributes, and try to join the group. Returns the errors."""
    with Raw() as raw:
        errors = [raw.bytes(cmd, b"", _flags(cmd)).errno for cmd in _COMMANDS]
        try:
            raw.socket.setsockopt(SOL_NETLINK, 1, raw.family.groups["events"])
        except PermissionError:
            errors.append(errno.EPERM)
        else:
            errors.append(0)
        return errors


def _in_child(prepare: object) -> list[int]:
    """Return what `_ask_all` sees in a child after `prepare()`."""
    assert callable(prepare)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            prepare()
            os.write(write, " ".join(map(str, _ask_all())).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    assert os.waitpid(pid, 0)[1] == 0
    return [int(word) for word in text.split()]


def _become_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def test_without_the_capability_every_command_is_denied(rig: Rig) -> None:
    assert _in_child(_become_nobody) == [errno.EPERM] * (len(_COMMANDS) + 1)


CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


@pytest.mark.parametrize("own_network", [False, True])
def test_root_of_a_user_namespace_is_denied(rig: Rig, own_network: bool) -> None:
    def unshare() -> None:
        """Have all capabilities, none of them in the initial namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWUSER | (CLONE_NEWNET if own_network else 0)):
            raise OSError(ctypes.get_errno(), "unshare")

    errors = _in_child(unshare)
    assert errors[:-1] == [errno.EPERM] * len(_COMMANDS)
    # The group belongs to its own network namespace, where nothing of khook is ever sent.
    assert errors[-1] == (0 if own_network else errno.EPERM)


# Nonsense.


def _random_value(chance: random.Random) -> bytes:
    return chance.choice(
        (
            lambda: struct.pack("=I", chance.choice((0, 1, 2, 3, 4, 99, 600001, 2**31, 2**32 - 1))),
            lambda: struct.pack("=Q", chance.choice((0, 1, 2, 99, 2**40, 2**63, 2**64 - 1))),
            lambda: chance.randbytes(chance.randrange(0, 40)),
            lambda: b"",
        )
    )()


def _random_attrs(chance: random.Random) -> bytes:
    """Attributes of any kind. An fd is none of a device: what would be armed must not be chance."""
    parts = []
    for _ in range(chance.randrange(0, 6)):
        number = chance.choice((*Attr, chance.randrange(0, 1 << 14)))
        if number == Attr.FD:
            data = struct.pack("=i", chance.choice((-1, 500, 2**31 - 1)))
        else:
            data = _random_value(chance)
        parts.append(_attr(number | chance.choice((0, 0, 0, 0x4000, 0x8000)), data))
    return b"".join(parts)


def _damage(chance: random.Random, payload: bytes) -> bytes:
    kind = chance.randrange(4)
    if kind == 0 or not payload:
        return payload
    if kind == 1:
        return payload[: chance.randrange(len(payload))]
    if kind == 2:
        return payload + chance.randbytes(chance.randrange(1, 9))
    at = chance.randrange(0, len(payload), 4)
    # The length of an attribute, or the begin of its data; never an fd's: those stay what they are.
    return payload[:at] + struct.pack("=H", chance.randrange(0, 64)) + payload[at + 2 :]


def _is_safe(payload: bytes) -> bool:
    """No fd below 3 can have come about by damage (they are what the test runner has open)."""
    return struct.pack("=H", Attr.FD) not in payload or all(
        struct.pack("=i", fd) not in payload for fd in range(3, 64)
    )


def test_ten_thousand_random_messages_are_answered_and_do_no_harm(rig: Rig, raw: Raw) -> None:
    chance = random.Random(SEED)
    flags = (NLM_F_REQUEST | NLM_F_ACK, NLM_F_REQUEST | NLM_F_DUMP, NLM_F_REQUEST | NLM_F_ACK | 0xF00)
    errors: Counter[int] = Counter()
    sent = 0
    while sent < FUZZED:
        payload = _damage(chance, _random_attrs(chance))
        if not _is_safe(payload):
            continue
        cmd = chance.choice((*Cmd, chance.randrange(256)))
        errors[raw.bytes(cmd, payload, chance.choice(flags), chance.choice((0, 1, 2, 255))).errno] += 1
        sent += 1
    # Most of it is refused, some of it is fine (HEARTBEAT of the agent it has become, dumps).
    assert errors[0] > 50
    assert errors[errno.EINVAL] > 1000
    assert set(errors) <= {
        0, errno.EINVAL, errno.ERANGE, errno.EOPNOTSUPP, errno.ENOENT, errno.ESRCH, errno.EBADF,
        errno.ENOTTY, errno.EPERM, errno.ENOTCONN, errno.EEXIST, errno.ENOSPC, errno.EBUSY,
    }, errors  # fmt: skip


@in_loop
async def test_after_nonsense_khook_works(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    with Raw() as raw:
        chance = random.Random(SEED + 1)
        async with agent() as khook:
            await arm(khook)
            watching = await watch(khook, owner)
            call = rig.call(owner)
            await held(khook, watching.id)
            for _ in range(500):
                payload = _damage(chance, _random_attrs(chance))
                # A release among them would be a fair command.
                cmd = chance.choice([cmd for cmd in Cmd if cmd not in (Cmd.RELEASE, Cmd.UNDETECT)])
                if _is_safe(payload):
                    raw.bytes(cmd, payload)
            assert not call.ended()
            (now,) = [one for one in await khook.watches() if one.id == watching.id]
            assert (now.state, now.holds) == (WatchState.HOLDING, 1)
            await khook.release(watching.id)
            assert (await call.result())["errors"] == 0


@in_loop
async def test_dumps_are_whole_when_they_need_many_messages(rig: Rig) -> None:
    owner = rig.cgroup("owner")
    async with agent() as khook:
        await arm(khook)
        watches = [await watch(khook, rig.cgroup("one")) for _ in range(100)]
        holding = await watch(khook, owner)
        call = rig.call(owner, "count", "-t", 200)
        await held(khook, holding.id, 200)
        assert {one.id for one in await khook.watches()} == {one.id for one in (*watches, holding)}
        assert len({one.id for one in await khook.holds()}) == 200
        await khook.release(holding.id)
        assert (await call.result())["errors"] == 0


def test_full_tables_refuse(rig: Rig, raw: Raw) -> None:
    parent = rig.cgroup("many")
    cgroups = [parent / str(number) for number in range(Limit.MAX_WATCHES + Limit.MAX_FENCES + 2)]
    for cgroup in cgroups:
        cgroup.mkdir()
    watched, fenced = cgroups[: Limit.MAX_WATCHES + 1], cgroups[Limit.MAX_WATCHES + 1 :]

    def command(cmd: Cmd, cgroup: Path) -> Ack:
        return raw.bytes(cmd, _attr(Attr.CGROUP, struct.pack("=Q", cgroup_id(cgroup))))

    for cmd, many in ((Cmd.DETECT, watched), (Cmd.FENCE, fenced)):
        acks = [command(cmd, cgroup) for cgroup in many]
        assert {ack.errno for ack in acks[:-1]} == {0}
        assert acks[-1].errno == errno.ENOSPC
        assert acks[-1].message is not None
        assert "as there can be" in acks[-1].message
    assert command(Cmd.UNFENCE, fenced[0]).errno == 0
    assert command(Cmd.FENCE, fenced[-1]).errno == 0
    dump = raw.talk(
        lambda sequence: encode_command(
            raw.family.id, Cmd.GET_WATCH, sequence, NLM_F_REQUEST | NLM_F_DUMP, {}
        )
    )
    numbers = [decode_attributes(one).number(Attr.WATCH) for one in dump if isinstance(one, Message)]
    assert len(numbers) == Limit.MAX_WATCHES
    for number in numbers:
        assert raw.bytes(Cmd.UNDETECT, _attr(Attr.WATCH, struct.pack("=I", number))).errno == 0
    for cgroup in fenced[1:]:
        assert command(Cmd.UNFENCE, cgroup).errno == 0
    for cgroup in cgroups:
        cgroup.rmdir()


@in_loop
async def test_commands_of_many_connections_do_not_mix(rig: Rig) -> None:
    connections = [await Khook.connect() for _ in range(8)]
    answers = await asyncio.gather(*(one.stats() for one in connections for _ in range(5)))
    assert len({answer.version for answer in answers}) == 1
    for one in connections:
        await one.close()
