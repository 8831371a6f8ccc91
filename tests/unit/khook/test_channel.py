# SPDX-License-Identifier: Apache-2.0
"""The client against a real kernel's generic netlink, where khook itself is not loaded."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from spotgpu_khook import channel as channels
from spotgpu_khook.abi import GENL_VERSION, Attr, Cmd
from spotgpu_khook.channel import Channel
from spotgpu_khook.client import EventStream, Khook
from spotgpu_khook.errors import (
    EventsLost,
    KhookClosed,
    KhookMissing,
    KhookRefused,
    KhookTimeout,
    KhookVersion,
)
from spotgpu_khook.ids import cgroup_key, pidns_key, process_key
from spotgpu_khook.model import FencedEvent, OrphanEvent
from spotgpu_khook.wire import Family, encode_command

FAMILY = 0x21


def test_without_the_module_the_error_says_what_to_do() -> None:
    with pytest.raises(KhookMissing) as caught:
        asyncio.run(Khook.connect())
    assert caught.value.errno == errno.ENOENT
    assert "modprobe khook" in str(caught.value)
    with pytest.raises(KhookMissing):
        asyncio.run(Khook.observe())


def test_another_version_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every kernel has this family; its version is 2.
    monkeypatch.setattr(channels, "GENL_NAME", "nlctrl")
    with pytest.raises(KhookVersion) as caught:
        asyncio.run(Khook.connect())
    assert (caught.value.theirs, caught.value.ours) == (2, GENL_VERSION)
    assert "the module is newer" in str(caught.value)


class Peer:
    """A channel whose other end is ours."""

    def __init__(self) -> None:
        near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setblocking(False)
        self.far.setblocking(False)
        self.channel = Channel(near)
        self.channel.family = Family(FAMILY, 1, {})

    def tell(self, attrs: dict[Attr, int | str], sequence: int = 0) -> None:
        self.far.send(encode_command(FAMILY, Cmd.EVENT, sequence, 0, attrs))

    def close(self) -> None:
        self.channel.close()
        self.far.close()


def _orphan(number: int) -> dict[Attr, int | str]:
    return {Attr.EVENT: 4, Attr.WATCH: 1, Attr.RETURN: number}


def test_events_come_in_order_and_a_kind_of_tomorrow_is_passed_over() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.tell(_orphan(1))
        peer.tell({Attr.EVENT: 99, Attr.WATCH: 1})
        peer.tell({Attr.EVENT: 6, Attr.CGROUP: 5, Attr.PID: 1, Attr.TID: 2, Attr.COMM: "x"})
        stream = EventStream(peer.channel, own=False)
        assert await anext(stream) == OrphanEvent(1, 1)
        assert await anext(stream) == FencedEvent(5, 1, 2, "x")
        peer.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(scenario())


def test_what_a_slow_reader_does_not_take_is_told_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_PENDING_EVENTS", 3)

    async def scenario() -> None:
        peer = Peer()
        for number in range(5):
            peer.tell(_orphan(number))
        await asyncio.sleep(0.05)
        stream = EventStream(peer.channel, own=False)
        with pytest.raises(EventsLost):
            await anext(stream)
        # Those before the loss are gone as well: the dump is newer than they are.
        assert await anext(stream) == OrphanEvent(1, 4)
        peer.close()

    asyncio.run(scenario())


def test_a_command_that_is_not_answered_times_out_and_a_late_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "ANSWER_LIMIT_S", 0.05)

    async def scenario() -> None:
        peer = Peer()
        with pytest.raises(KhookTimeout, match="HEARTBEAT: no answer"):
            await peer.channel.command(Cmd.HEARTBEAT, {})
        peer.tell({Attr.VERSION: 1}, sequence=1)
        await asyncio.sleep(0.05)
        peer.close()

    asyncio.run(scenario())


def test_closing_ends_a_command_that_waits() -> None:
    async def scenario() -> None:
        peer = Peer()
        waiting = asyncio.ensure_future(peer.channel.command(Cmd.HEARTBEAT, {}))
        await asyncio.sleep(0.02)
        peer.close()
        with pytest.raises(KhookClosed):
            await waiting

    asyncio.run(scenario())


def test_nonsense_on_the_socket_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.far.send(b"\xff" * 64)
        peer.tell(_orphan(1))
        assert await anext(EventStream(peer.channel, own=False)) == OrphanEvent(1, 1)
        peer.close()

    asyncio.run(scenario())
    assert "a datagram is dropped" in caplog.text


def test_a_refusal_has_the_errno_and_the_sentence() -> None:
    error = KhookRefused("ARM", errno.EBADF, "the sender has no such fd open")
    assert (error.errno, error.reason) == (errno.EBADF, "the sender has no such fd open")
    assert str(error) == "ARM: the sender has no such fd open"


def test_ids_are_read_from_proc_and_the_cgroup_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cgroup_key(tmp_path).id == tmp_path.stat().st_ino
    (tmp_path / "77/ns").mkdir(parents=True)
    (tmp_path / "77/ns/pid").touch()
    (tmp_path / "77/stat").write_text("77 (a) b (c)) S " + " ".join(str(n) for n in range(4, 53)))
    monkeypatch.setattr("spotgpu_khook.ids.PROC", tmp_path)
    assert process_key(77).start_ticks == 22
    assert pidns_key(77).inum == (tmp_path / "77/ns/pid").stat().st_ino
    with pytest.raises(FileNotFoundError):
        process_key(78)
