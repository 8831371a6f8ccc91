# SPDX-License-Identifier: Apache-2.0
"""Sources to core to effects: the agent's one loop.

dispatch() is the only place where the state changes, and it never waits. The commands go out first;
recording, metrics and logging come after them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from spotgpu_agent import commands as c
from spotgpu_agent import events as e
from spotgpu_agent import show
from spotgpu_agent.adoption import adopt
from spotgpu_agent.clock import Clock
from spotgpu_agent.config import Config
from spotgpu_agent.core import step
from spotgpu_agent.effects import Effects
from spotgpu_agent.errors import BackendError, PlatformError
from spotgpu_agent.handback import HandBacks
from spotgpu_agent.logs import bind
from spotgpu_agent.metrics import Metrics
from spotgpu_agent.model import OwnerState, State
from spotgpu_agent.replay import Recorder
from spotgpu_agent.sources import Sources, arm_gates
from spotgpu_agent.startup import NodeAccess
from spotgpu_agent.state import FILE_NAME, Saved, Writer, boot_id, dump, project
from spotgpu_agent.tasks import NS, Tasks
from spotgpu_agent.tracing import HandBackTrace

SAVE_S: Final = 0.05  # after the change: not among the first things of a hand-back
CLOSE_S: Final = 2.0
# Reasons that say what is known: for debugging.
_QUIET: Final = frozenset({"containers", "hold-known", "idle", "memory-in-use", "sample-unused", "stale"})
# Why a device is not lendable, and what a witness waits for: one a sample, told when they change.
_BUSY: Final = frozenset({"device-working", "idle", "owner-active", "stranger-active", "usage-unknown"})
_WAITS: Final = frozenset({"handles-held", "handles-unknown", "memory-unknown"})

_log = logging.getLogger(__name__)


def begin_state(config: Config) -> State:
    """The state before anything is known."""
    return State(tuple(OwnerState(owner.name, owner.policy, owner.devices) for owner in config.owners))


class Runner:
    """The running agent.

    Args:
        node: what it has its hands on.
        saved: the state file of this boot, if there is one.
        metrics: where to count.
        clock: of the process.
    """

    def __init__(self, node: NodeAccess, saved: Saved | None, metrics: Metrics, clock: Clock) -> None:
        self._node = node
        self._saved = saved
        self._metrics = metrics
        self._clock = clock
        self._state = begin_state(node.config)
        self._boot_id = boot_id()
        self._traces = HandBacks(
            metrics, clock, self._boot_id, clock.monotonic_ns(), node.inventory.attributes(node.config.vendor)
        )
        self._tasks = Tasks()
        self._effects = Effects(node, clock, self._tasks, self.state, self.dispatch)
        self._saving = False
        self._writer: Writer | None = None
        self._recorder = Recorder(node.config.record, self._state) if node.config.record else None
        self._not_ready: str | None = "starting"
        self._busy: dict[str, str] = {}  # owner -> why its devices are not lendable
        self._told: dict[str, str] = {}  # owner -> the last reason of those that repeat

    def state(self) -> State:
        """The core's state of this moment."""
        return self._state

    # Life ---------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Attach, arm, adopt, and go on until `stop`.

        Args:
            stop: ends it; what is held or lent is then the kernel's to look after (README.md).
            ready: called once everything is armed.

        Raises:
            BackendError, PlatformError: attaching or arming failed; in an ExceptionGroup: something later.
        """
        config, backend = self._node.config, self._node.backend
        returns = await backend.attach(config.orphan_ms, config.heartbeat_ms)
        _log.info("attached", extra={"adopted": returns})
        try:
            await arm_gates(backend, self._node.nodes)
        except BackendError as error:
            # A gate that was armed before this one is no harm: it is untouched while nothing is watched.
            remedy = error.remedy or "see the kernel log and `spotgpu doctor`"
            raise PlatformError(f"a gate can't be armed: {error.message}", error.field, remedy) from error
        self._writer = Writer(config.state_dir / FILE_NAME, _state_failed)
        loop = asyncio.get_running_loop()
        follower = self._effects.follower
        loop.add_reader(follower.fileno(), self._tasks.guarded(follower.look))
        try:
            async with self._tasks:
                await adopt(self._node, self._saved, self._clock, self._effects, self.state, self.dispatch)
                for name, source in self._sources().all():
                    self._tasks.spawn(source, name)
                self._set_ready(None)
                ready()
                await stop.wait()
                self._set_ready("stopping")
                for hands in self._node.hands.values():
                    hands.closing()
        finally:
            loop.remove_reader(follower.fileno())
            follower.close()
            self._close_files()

    def _sources(self) -> Sources:
        return Sources(
            self._node,
            self._metrics,
            self._clock,
            self._effects,
            self.state,
            self.dispatch,
            self._backend_gone,
        )

    def _backend_gone(self, why: str) -> None:
        self._set_ready(f"{self._node.backend.capabilities.name} is gone: {why}")
        _log.error("%s; load the module, then restart the agent", self._not_ready)

    def _set_ready(self, why_not: str | None) -> None:
        self._not_ready = why_not
        self._metrics.ready(ready=why_not is None)

    def why_not_ready(self) -> str | None:
        """Why the agent is not ready; None when it is."""
        return self._not_ready

    def _close_files(self) -> None:
        self._save()
        if self._writer is not None and not self._writer.close(CLOSE_S):
            _log.warning("the state file could not be written in time")
        if self._recorder is not None:
            self._recorder.close()

    # The core -----------------------------------------------------------------------------------------------

    def dispatch(self, event: e.Event) -> None:
        """One turn of the core, and its commands on their way."""
        if self._tasks.ended:
            return
        now_ns = self._clock.monotonic_ns()
        before = self._state.owner(event.owner)
        decision = step(self._state, event, now_ns)
        self._state = decision.state
        after = self._state.owner(event.owner)
        trace = self._traces.traces.get(event.owner)
        for command in decision.commands:
            if isinstance(command, c.Begin) and after is not None:
                trace = self._traces.begin(command, after)
            elif isinstance(command, c.Finish):
                ended = self._traces.take(command.owner)
                self._tasks.soon(self._traces.finish, command, ended)
            elif isinstance(command, c.Save):
                self._save_soon()
            elif not isinstance(command, c.CountEviction):
                self._effects.start(command)
        if self._recorder is not None:
            self._tasks.soon(self._recorder.add, event, now_ns, decision)
        # First come, first served: the commands run before this.
        self._tasks.soon(self._tell, event, decision, trace)
        if before is not None and after is not None:
            self._tasks.soon(self._show, before, after)

    def _tell(self, event: e.Event, decision: c.Decision, trace: HandBackTrace | None) -> None:
        """Log the reasons and count the evictions of one turn, with the ids of its hand-back."""
        for reason in decision.reasons:
            self._log_reason(reason, type(event).__name__, trace)
        ids = (trace.trace_id, trace.span_id) if trace is not None else ("", "")
        for command in decision.commands:
            if isinstance(command, c.CountEviction):
                self._metrics.eviction(command.reason, command.method, command.duration_ns / NS, *ids)

    def _log_reason(self, reason: c.Reason, event: str, trace: HandBackTrace | None) -> None:
        quiet = reason.code in _QUIET
        if reason.code in _BUSY | _WAITS:
            quiet = quiet or self._told.get(reason.owner) == reason.text
            self._told[reason.owner] = reason.text
        if reason.code in _BUSY:
            self._busy[reason.owner] = reason.text
        level = logging.WARNING if reason.alert else logging.DEBUG if quiet else logging.INFO
        if not _log.isEnabledFor(level):
            return
        extra = {"owner": reason.owner, "code": reason.code, "event": event}
        if trace is None:
            _log.log(level, "%s", reason.text, extra=extra)
        else:
            with bind(trace):
                _log.log(level, "%s", reason.text, extra=extra)

    def _show(self, before: OwnerState, after: OwnerState) -> None:
        if before.availability is not after.availability:
            for device in after.devices:
                self._metrics.device(device, after.availability, after.name)
        if before.quarantined != after.quarantined:
            bad = dict(after.quarantined)
            for device in after.devices:
                self._metrics.device_healthy(device, device not in bad)
        if after.drain is not None:
            self._effects.watch_emptying()

    def _save_soon(self) -> None:
        if not self._saving:
            self._saving = True
            self._tasks.later(SAVE_S, self._save)

    def _save(self) -> None:
        self._saving = False
        if self._writer is not None:
            owners = tuple(map(project, self._state.owners))
            self._writer.put(dump(Saved(self._boot_id, owners)))

    # For people ---------------------------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """Devices, owners and leases as the agent has them."""
        owners = self._state.owners
        return {
            "node": self._node.config.node,
            "ready": self._not_ready or "yes",
            "back_end": self._node.backend.capabilities.name,
            "driver": self._node.inventory.driver,
            "devices": [row for owner in owners for row in show.devices(owner)],
            "owners": [show.owner(owner, self._busy.get(owner.name, "")) for owner in owners],
            "leases": [row for owner in owners for row in show.leases(owner)],
        }

    async def full_status(self) -> dict[str, object]:
        """The same with what the back-end says.

        Raises:
            BackendError: it does not answer.
        """
        backend = self._node.backend
        now_ns = self._clock.monotonic_ns()
        return {
            **self.status(),
            "gates": [show.gate(gate) for gate in await backend.gates()],
            "watches": [show.watch(watch, now_ns) for watch in await backend.watches()],
            "holds": [show.hold(hold) for hold in await backend.holds()],
            "fences": [show.fence(fence) for fence in await backend.fences()],
        }


def _state_failed(error: OSError) -> None:
    _log.error("the state file can't be written: %s", error, extra={"errno": error.errno})
