# SPDX-License-Identifier: Apache-2.0
"""khook from Python: typed, asynchronous calls and events.

    khook = await Khook.connect()
    await khook.attach(orphan_ms=3000, heartbeat_ms=0)
    gate = await khook.arm(fd, Classifier.NVIDIA_RM)
    watch = await khook.detect(CgroupKey(owner), WatchPolicy(deadline_ms=10000))
    await khook.lease(watch.id, spot)
    async for event in khook.events():
        ...

What a command means and when it is refused is said in khook.h. Every method that sends one raises
KhookRefused, KhookDenied, KhookMissing, KhookTimeout or KhookClosed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType

from spotgpu_khook.abi import (
    MCGRP_EVENTS,
    AtDeadline,
    Attr,
    Classifier,
    Cmd,
    EventKind,
    GateState,
    IoctlClass,
    Method,
    OnHold,
    Outcome,
    ReleaseOn,
    ReturnOn,
    WatchState,
)
from spotgpu_khook.channel import Channel, open_channel
from spotgpu_khook.model import (
    Caller,
    CgroupKey,
    EmptyEvent,
    Event,
    Eviction,
    Fence,
    FencedEvent,
    Gate,
    GateLostEvent,
    Hold,
    HoldEvent,
    Key,
    OrphanEvent,
    PidnsKey,
    ProcessKey,
    ReleaseEvent,
    Stats,
    Watch,
    WatchPolicy,
)
from spotgpu_khook.wire import Attributes, Value, decode_attributes


class EventStream:
    """The events of one socket. `async for`; raises EventsLost after a loss and may be read on after it."""

    def __init__(self, channel: Channel, own: bool) -> None:
        self._channel = channel
        self._own = own

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            message = await self._channel.next_event()
            if message is None:
                raise StopAsyncIteration
            event = _event(decode_attributes(message))
            if event is not None:
                return event

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream's socket if it has its own (`observe`)."""
        if self._own:
            self._channel.close()


class Khook:
    """A connection to khook. One event loop, one socket; it may be the agent's (`attach`) or anybody's."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @classmethod
    async def connect(cls) -> Khook:
        """Connect, and see that commands are answered.

        Raises KhookMissing (not loaded), KhookVersion (another ABI) or KhookDenied (capability).
        """
        khook = cls(await open_channel())
        try:
            await khook.stats()
        except BaseException:
            await khook.close()
            raise
        return khook

    @classmethod
    async def observe(cls) -> EventStream:
        """Return the events of everything, on a socket of their own, without being the agent.

        Raises what `connect` does.
        """
        channel = await open_channel()
        try:
            channel.join(MCGRP_EVENTS)
        except BaseException:
            channel.close()
            raise
        return EventStream(channel, own=True)

    async def __aenter__(self) -> Khook:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the socket. If it is the agent's, the kernel takes the agent for dead."""
        self._channel.close()

    # The agent.

    async def attach(self, orphan_ms: int, heartbeat_ms: int) -> int:
        """Become the agent; return how many returns of an earlier one are adopted.

        Args:
            orphan_ms: how long khook waits for another agent when this one is gone.
            heartbeat_ms: the longest time between two commands; 0: the socket's life is the only sign.
        """
        attrs = await self._ask(Cmd.ATTACH, {Attr.ORPHAN_MS: orphan_ms, Attr.HEARTBEAT_MS: heartbeat_ms})
        return attrs.number(Attr.ADOPTED)

    async def heartbeat(self) -> None:
        """Tell khook that the agent is alive; every other command does so too."""
        await self._tell(Cmd.HEARTBEAT, {})

    # Gates.

    async def arm(self, fd: int, classifier: Classifier, method: Method = Method.AUTO) -> Gate:
        """Arm the ioctl handler of the device that `fd` has open, or find it armed."""
        messages, warning = await self._channel.command(
            Cmd.ARM, {Attr.FD: fd, Attr.CLASSIFIER: classifier, Attr.METHOD: method}
        )
        return _gate(decode_attributes(messages[0]), warning)

    async def disarm(self, gate: int) -> None:
        """Give the handler back. Refused (EBUSY) while calls are held in it."""
        await self._tell(Cmd.DISARM, {Attr.GATE: gate})

    # Watches.

    async def detect(self, key: Key, policy: WatchPolicy) -> Watch:
        """Watch `key`, or set an existing watch of it anew. When this returns, no later call of it passes."""
        attrs = await self._ask(Cmd.DETECT, {**_key_attrs(key), **_policy_attrs(policy)})
        return _watch(attrs)

    async def undetect(self, watch: int) -> None:
        """Let the watch's calls through and forget it."""
        await self._tell(Cmd.UNDETECT, {Attr.WATCH: watch})

    async def lease(self, watch: int, cgroup: int) -> None:
        """Name a spot cgroup (id) on the watch's devices."""
        await self._tell(Cmd.LEASE, {Attr.WATCH: watch, Attr.CGROUP: cgroup})

    async def unlease(self, watch: int, cgroup: int) -> None:
        """Take a lease back."""
        await self._tell(Cmd.UNLEASE, {Attr.WATCH: watch, Attr.CGROUP: cgroup})

    async def release(self, watch: int, return_id: int | None = None) -> None:
        """Let the whole return through; with `return_id`, only if it is still the current one (ESTALE)."""
        attrs: dict[Attr, Value] = {Attr.WATCH: watch}
        if return_id is not None:
            attrs[Attr.RETURN] = return_id
        await self._tell(Cmd.RELEASE, attrs)

    async def release_hold(self, hold: int) -> None:
        """Let one call through; the watch goes on holding."""
        await self._tell(Cmd.RELEASE, {Attr.HOLD: hold})

    async def evict(self, watch: int) -> None:
        """Kill the watch's lease now, without a hold."""
        await self._tell(Cmd.EVICT, {Attr.WATCH: watch})

    # Fences.

    async def fence(self, cgroup: int) -> None:
        """Let a spot cgroup (id) open and ioctl nothing on any gate."""
        await self._tell(Cmd.FENCE, {Attr.CGROUP: cgroup})

    async def unfence(self, cgroup: int) -> None:
        """Take a fence away."""
        await self._tell(Cmd.UNFENCE, {Attr.CGROUP: cgroup})

    # What is.

    async def gates(self) -> list[Gate]:
        """Return every gate."""
        return [_gate(attrs) for attrs in await self._all(Cmd.GET_GATE)]

    async def watches(self) -> list[Watch]:
        """Return every watch."""
        return [_watch(attrs) for attrs in await self._all(Cmd.GET_WATCH)]

    async def holds(self) -> list[Hold]:
        """Return every call that is held now."""
        return [_hold(attrs) for attrs in await self._all(Cmd.GET_HOLD)]

    async def fences(self) -> list[Fence]:
        """Return every fence."""
        return [
            Fence(attrs.number(Attr.CGROUP), attrs.number(Attr.CALLS))
            for attrs in await self._all(Cmd.GET_FENCE)
        ]

    async def stats(self) -> Stats:
        """Return the counters."""
        return _stats(await self._ask(Cmd.GET_STATS, {}))

    def events(self) -> EventStream:
        """Return the events sent to this socket, which must be the agent's. Take one stream a connection."""
        return EventStream(self._channel, own=False)

    async def _tell(self, cmd: Cmd, attrs: dict[Attr, Value]) -> None:
        await self._channel.command(cmd, attrs)

    async def _ask(self, cmd: Cmd, attrs: dict[Attr, Value]) -> Attributes:
        messages, _ = await self._channel.command(cmd, attrs)
        return decode_attributes(messages[0])

    async def _all(self, cmd: Cmd) -> list[Attributes]:
        return [decode_attributes(message) for message in await self._channel.dump(cmd)]


# Values to attributes.


def _key_attrs(key: Key) -> dict[Attr, Value]:
    match key:
        case CgroupKey(id):
            return {Attr.CGROUP: id}
        case PidnsKey(inum):
            return {Attr.PIDNS: inum}
        case ProcessKey(pid, start_ticks):
            return {Attr.PID: pid, Attr.START_TICKS: start_ticks}


def _policy_attrs(policy: WatchPolicy) -> dict[Attr, Value]:
    return {
        Attr.RETURN_ON: policy.return_on,
        Attr.DEADLINE_MS: policy.deadline_ms,
        Attr.AT_DEADLINE: policy.at_deadline,
        Attr.ON_HOLD: policy.on_hold,
        Attr.RELEASE_ON: policy.release_on,
    }


# Attributes to values.


def _gate(attrs: Attributes, warning: str | None = None) -> Gate:
    return Gate(
        id=attrs.number(Attr.GATE),
        dev=attrs.number(Attr.DEV),
        module=attrs.text(Attr.MODULE),
        function=attrs.text(Attr.FUNCTION),
        classifier=Classifier(attrs.number(Attr.CLASSIFIER)),
        method=Method(attrs.number(Attr.METHOD)),
        state=GateState(attrs.number(Attr.GATE_STATE)),
        calls=attrs.number(Attr.CALLS),
        holds=attrs.number(Attr.HOLDS),
        warning=warning.removeprefix("khook: ") if warning else None,
    )


def _key(attrs: Attributes) -> Key:
    if Attr.PIDNS in attrs:
        return PidnsKey(attrs.number(Attr.PIDNS))
    if Attr.PID in attrs:
        return ProcessKey(attrs.number(Attr.PID), attrs.number(Attr.START_TICKS))
    return CgroupKey(attrs.number(Attr.CGROUP))


def _eviction(attrs: Attributes) -> Eviction:
    return Eviction(
        kill_ns=attrs.number(Attr.KILL_NS),
        killed_ns=attrs.number(Attr.KILLED_NS),
        empty_ns=attrs.number(Attr.EMPTY_NS),
        passes=attrs.number(Attr.PASSES),
    )


def _watch(attrs: Attributes) -> Watch:
    return Watch(
        id=attrs.number(Attr.WATCH),
        key=_key(attrs),
        policy=WatchPolicy(
            return_on=ReturnOn(attrs.number(Attr.RETURN_ON)),
            deadline_ms=attrs.number(Attr.DEADLINE_MS),
            at_deadline=AtDeadline(attrs.number(Attr.AT_DEADLINE)),
            on_hold=OnHold(attrs.number(Attr.ON_HOLD)),
            release_on=ReleaseOn(attrs.number(Attr.RELEASE_ON)),
        ),
        state=WatchState(attrs.number(Attr.WATCH_STATE)),
        holds=attrs.number(Attr.HOLDS),
        return_id=attrs.number(Attr.RETURN),
        first_ns=attrs.number(Attr.FIRST_NS),
        eviction=_eviction(attrs),
        release_ns=attrs.number(Attr.RELEASE_NS),
        outcome=Outcome(attrs.number(Attr.OUTCOME)),
        leases=attrs.numbers(Attr.LEASE_CGROUP),
    )


def _caller(attrs: Attributes) -> Caller:
    return Caller(
        pid=attrs.number(Attr.PID),
        tid=attrs.number(Attr.TID),
        comm=attrs.text(Attr.COMM),
        cgroup=attrs.number(Attr.CGROUP),
        pidns=attrs.number(Attr.PIDNS),
        dev=attrs.number(Attr.DEV),
        ioctl=attrs.number(Attr.IOCTL),
        ioctl_class=IoctlClass(attrs.number(Attr.CLASS)),
        gate=attrs.number(Attr.GATE),
    )


def _hold(attrs: Attributes) -> Hold:
    return Hold(
        id=attrs.number(Attr.HOLD),
        watch=attrs.number(Attr.WATCH),
        return_id=attrs.number(Attr.RETURN),
        caller=_caller(attrs),
        age_ns=attrs.number(Attr.AGE_NS),
    )


_SIZES = (Attr.STAT_GATES, Attr.STAT_WATCHES, Attr.STAT_FENCES, Attr.STAT_HOLDS)
_COUNTERS = tuple(attr for attr in Attr if Attr.STAT_RETURNS <= attr <= Attr.STAT_EVENTS_LOST)


def _stats(attrs: Attributes) -> Stats:
    return Stats(
        version=attrs.number(Attr.VERSION),
        orphan_ms=attrs.number(Attr.ORPHAN_MS),
        heartbeat_ms=attrs.number(Attr.HEARTBEAT_MS),
        agent_portid=attrs.number(Attr.AGENT_PORTID),
        heartbeat_age_ns=attrs.number(Attr.HEARTBEAT_AGE_NS),
        selftests=attrs.number(Attr.STAT_SELFTESTS),
        now={_stat_name(attr): attrs.number(attr) for attr in _SIZES},
        total={_stat_name(attr): attrs.number(attr) for attr in _COUNTERS},
    )


def _stat_name(attr: Attr) -> str:
    return attr.name.removeprefix("STAT_").lower()


def _event(attrs: Attributes) -> Event | None:
    """Return the event, or None for a kind that only a newer module knows."""
    match attrs.number(Attr.EVENT):
        case EventKind.HOLD:
            return HoldEvent(
                *_return_ids(attrs), attrs.number(Attr.HOLD), attrs.number(Attr.FIRST_NS), _caller(attrs)
            )
        case EventKind.RELEASE:
            return ReleaseEvent(
                *_return_ids(attrs),
                attrs.number(Attr.HOLD),
                attrs.number(Attr.FIRST_NS),
                _caller(attrs),
                release_ns=attrs.number(Attr.RELEASE_NS),
                outcome=Outcome(attrs.number(Attr.OUTCOME)),
                holds=attrs.number(Attr.HOLDS),
                eviction=_eviction(attrs),
            )
        case EventKind.EMPTY:
            return EmptyEvent(*_return_ids(attrs), _eviction(attrs))
        case EventKind.ORPHAN:
            return OrphanEvent(*_return_ids(attrs))
        case EventKind.GATE_LOST:
            return GateLostEvent(attrs.number(Attr.GATE), attrs.text(Attr.MODULE))
        case EventKind.FENCED:
            return FencedEvent(
                attrs.number(Attr.CGROUP),
                attrs.number(Attr.PID),
                attrs.number(Attr.TID),
                attrs.text(Attr.COMM),
            )
        case _:
            return None


def _return_ids(attrs: Attributes) -> tuple[int, int]:
    return attrs.number(Attr.WATCH), attrs.number(Attr.RETURN)


__all__ = ["EventStream", "Khook"]
