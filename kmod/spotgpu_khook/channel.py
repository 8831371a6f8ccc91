# SPDX-License-Identifier: Apache-2.0
"""One netlink socket in an event loop: commands with their answers, and events beside them.

The socket is read whenever the loop runs, so a slow reader of events delays no answer; what it does not take
in time is dropped and told as lost, like what the kernel dropped (ENOBUFS).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Iterator

from spotgpu_khook.abi import GENL_NAME, GENL_VERSION, Attr, Cmd
from spotgpu_khook.errors import (
    EventsLost,
    KhookClosed,
    KhookDenied,
    KhookError,
    KhookMissing,
    KhookRefused,
    KhookTimeout,
    KhookVersion,
)
from spotgpu_khook.wire import (
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_REQUEST,
    Ack,
    Family,
    Message,
    Value,
    decode_family,
    encode_command,
    encode_get_family,
    split,
)

_SOL_NETLINK = 270
_NETLINK_GENERIC = 16
_NETLINK_ADD_MEMBERSHIP = 1
_NETLINK_CAP_ACK = 10
_NETLINK_EXT_ACK = 11
#: Bytes that the kernel keeps for us, past net.core.rmem_max where it lets us.
RECEIVE_BUFFER = 4 * 1024 * 1024
#: Events read from the socket and not taken by anybody yet.
MAX_PENDING_EVENTS = 8192
_DATAGRAM = 256 * 1024
#: Commands the kernel answers at once. Arming waits for RCU, under emulation for seconds.
ANSWER_LIMIT_S = 30.0
#: What may wait in the kernel for a function to be hooked or given back: sent from a thread.
_SLOW = frozenset({Cmd.ARM, Cmd.DISARM, Cmd.DETECT, Cmd.FENCE})

_log = logging.getLogger(__name__)


class _Pending:
    """An answer that is being received."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.messages: list[Message] = []
        self.done: asyncio.Future[Ack] = loop.create_future()


class Channel:
    """One socket that talks to the family khook. Make it with `open_channel`."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._last_sequence = 0
        self._pending: dict[int, _Pending] = {}
        self._events: deque[Message] = deque()
        self._events_lost = False
        self._news = asyncio.Event()
        # The kernel keeps one dump a socket (af_netlink.c, cb_running): a second one gets EBUSY.
        self._dumping = asyncio.Lock()
        self._closed = False
        self.family = Family(0, 0, {})
        self._loop.add_reader(sock, self._read)

    # Commands.

    async def resolve(self) -> None:
        """Find the family. Raises KhookMissing or KhookVersion."""
        sequence = self._next_sequence()
        try:
            messages, _ = await self._converse("GETFAMILY", sequence, encode_get_family(GENL_NAME, sequence))
        except KhookRefused as refused:
            if refused.errno == errno.ENOENT:
                raise KhookMissing from refused
            raise
        self.family = decode_family(messages[0])
        if self.family.version != GENL_VERSION:
            raise KhookVersion(self.family.version, GENL_VERSION)

    async def command(self, cmd: Cmd, attrs: dict[Attr, Value]) -> tuple[list[Message], str | None]:
        """Send a command; return its answer and what the kernel had to say of a success.

        Raises KhookRefused, KhookDenied, KhookMissing, KhookTimeout or KhookClosed.
        """
        sequence = self._next_sequence()
        flags = NLM_F_REQUEST | NLM_F_ACK
        data = encode_command(self.family.id, cmd, sequence, flags, attrs)
        return await self._converse(cmd.name, sequence, data, slow=cmd in _SLOW)

    async def dump(self, cmd: Cmd) -> list[Message]:
        """Return every object of a kind. Raises as `command` does."""
        async with self._dumping:
            sequence = self._next_sequence()
            data = encode_command(self.family.id, cmd, sequence, NLM_F_REQUEST | NLM_F_DUMP, {})
            return (await self._converse(cmd.name, sequence, data))[0]

    def _next_sequence(self) -> int:
        # Events have the number 0.
        self._last_sequence = self._last_sequence % 0xFFFFFFFF + 1
        return self._last_sequence

    async def _converse(
        self, name: str, sequence: int, data: bytes, slow: bool = False
    ) -> tuple[list[Message], str | None]:
        if self._closed:
            raise KhookClosed
        pending = self._pending[sequence] = _Pending(self._loop)
        try:
            # The kernel executes a command within send().
            if slow:
                await asyncio.to_thread(self._socket.send, data)
            else:
                self._socket.send(data)
            async with asyncio.timeout(ANSWER_LIMIT_S):
                ack = await pending.done
        except TimeoutError as late:
            raise KhookTimeout(name, ANSWER_LIMIT_S) from late
        finally:
            del self._pending[sequence]
        if ack.errno:
            raise _refusal(name, ack)
        return pending.messages, ack.message

    # Events.

    def join(self, group: str) -> None:
        """Join a multicast group of the family. Raises KhookDenied or KhookError."""
        try:
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, self.family.groups[group])
        except PermissionError as denied:
            raise KhookDenied from denied
        except OSError as error:
            raise KhookError(f"joining {group}: {error.strerror}", error.errno or 0) from error

    async def next_event(self) -> Message | None:
        """Wait for an event; None when the channel is closed. Raises EventsLost, once a loss."""
        while True:
            if self._events_lost:
                self._events_lost = False
                raise EventsLost
            if self._events:
                return self._events.popleft()
            if self._closed:
                return None
            self._news.clear()
            await self._news.wait()

    def _lose_events(self) -> None:
        self._events_lost = True
        self._news.set()

    # The socket.

    def _read(self) -> None:
        """Take in all that is there; called by the loop."""
        for datagram in self._datagrams():
            try:
                for item in split(datagram):
                    self._take(item)
            except ValueError as error:
                _log.warning("khook: a datagram is dropped: %s", error)

    def _datagrams(self) -> Iterator[bytes]:
        while not self._closed:
            try:
                yield self._socket.recv(_DATAGRAM)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._lose_events()

    def _take(self, item: Message | Ack) -> None:
        if isinstance(item, Message) and item.sequence == 0:
            self._take_event(item)
            return
        pending = self._pending.get(item.sequence)
        if pending is None or pending.done.done():
            return
        if isinstance(item, Message):
            pending.messages.append(item)
        else:
            pending.done.set_result(item)

    def _take_event(self, message: Message) -> None:
        if message.family != self.family.id:
            return
        if len(self._events) >= MAX_PENDING_EVENTS:
            self._events.clear()
            self._lose_events()
            return
        self._events.append(message)
        self._news.set()

    def close(self) -> None:
        """Close the socket. Whoever waits for an answer gets KhookClosed; event streams end."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(KhookClosed())
        self._news.set()


def _refusal(name: str, ack: Ack) -> KhookError:
    if ack.errno == errno.EPERM and ack.message is None:
        return KhookDenied()
    if ack.errno == errno.ENOENT and ack.message is None and name != "GETFAMILY":
        return KhookMissing()  # the family's number is nobody's any more
    # khook prefixes its sentences with its name; netlink's own policy errors have none.
    message = (ack.message or errno.errorcode.get(ack.errno, str(ack.errno))).removeprefix("khook: ")
    return KhookRefused(name, ack.errno, message)


async def open_channel() -> Channel:
    """Open a socket and find the family. Raises KhookMissing, KhookVersion or KhookError."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC)
    channel = None
    try:
        sock.setblocking(False)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        sock.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        _grow(sock)
        # Bound, so that the kernel tells khook when it is closed.
        sock.bind((0, 0))
        channel = Channel(sock)
        await channel.resolve()
    except BaseException:
        if channel is not None:
            channel.close()
        sock.close()
        raise
    return channel


def _grow(sock: socket.socket) -> None:
    """Ask for a large receive buffer; past rmem_max where CAP_NET_ADMIN allows it."""
    so_rcvbufforce = 33
    try:
        sock.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, RECEIVE_BUFFER)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
