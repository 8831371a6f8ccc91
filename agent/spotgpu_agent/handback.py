# SPDX-License-Identifier: Apache-2.0
"""One hand-back seen from outside: its trace, its metrics, its one line in the log.

Phases are what was really waited for, one after the other: a phase that ran beside an earlier one counts from
where that one ended, so they add up, and what is left over is exported as unexplained.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from spotgpu.names import Attr, Outcome, Phase, Trigger, Witness
from spotgpu_agent.clock import Clock
from spotgpu_agent.commands import Begin, Finish, Report
from spotgpu_agent.logs import bind
from spotgpu_agent.metrics import Metrics
from spotgpu_agent.model import OwnerState, Proof
from spotgpu_agent.tracing import HandBackTrace, derived_ids

_log = logging.getLogger(__name__)

Value = str | int | float | bool | Sequence[str]
_WITNESS_PHASES: Final = {
    Witness.CGROUP: Phase.DRAIN_CGROUP,
    Witness.HANDLES: Phase.DRAIN_HANDLES,
    Witness.MEMORY: Phase.DRAIN_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One phase of a hand-back, ns; `error_type` when it did not come to its end."""

    phase: Phase
    start_ns: int
    end_ns: int
    error_type: str | None = None
    attempts: int = 0


def steps(report: Report) -> list[Step]:
    """The phases of a hand-back, in order and without overlap. Pure."""
    begun: list[Step] = []
    at_ns = report.first_ns
    if report.spots:
        killed_ns = report.killed_ns or report.kill_ns
        if killed_ns is not None:
            at_ns = max(at_ns, min(killed_ns, report.end_ns))
            begun.append(Step(Phase.EVICT_KILL, report.first_ns, at_ns))
        at_ns = _witness(begun, report, Witness.CGROUP, at_ns, report.empty_ns, 0)
    for witness, proof in ((Witness.HANDLES, report.handles), (Witness.MEMORY, report.memory)):
        if proof is not None:
            at_ns = max(at_ns, proof.started_ns)
        at_ns = _witness(begun, report, witness, at_ns, *_heard(proof))
    if report.release_ns is not None and report.release_sent_ns is not None:
        begun.append(Step(Phase.RELEASE, max(at_ns, report.release_sent_ns), report.release_ns))
    return begun


def _heard(proof: Proof | None) -> tuple[int | None, int]:
    return (proof.proven_ns, proof.attempts) if proof is not None else (None, 0)


def _witness(
    begun: list[Step], report: Report, witness: Witness, at_ns: int, heard_ns: int | None, attempts: int
) -> int:
    """Add the phase of one witness; only the first missing one was waited for. Returns where it ended."""
    phase = _WITNESS_PHASES[witness]
    if heard_ns is None:
        if report.missing and report.missing[0] is witness:
            begun.append(Step(phase, min(at_ns, report.end_ns), report.end_ns, f"{witness}_unproven"))
        return at_ns
    # After a release by the kernel (empty lease) the devices are verified while the owner runs already.
    end_ns = max(at_ns, heard_ns)
    begun.append(Step(phase, at_ns, end_ns, None, attempts))
    return end_ns


@dataclass(slots=True)
class HandBacks:
    """Traces of the hand-backs under way, by owner.

    Attributes:
        boot: the kernel's boot id.
        since_ns: when this agent began, CLOCK_MONOTONIC: a return from before it is another agent's trace,
            in which this one goes on.
        hardware: attributes of each device.
    """

    metrics: Metrics
    clock: Clock
    boot: str
    since_ns: int
    hardware: Mapping[str, Mapping[Attr, str]] = field(default_factory=dict)
    traces: dict[str, HandBackTrace] = field(default_factory=dict)

    def begin(self, command: Begin, owner: OwnerState) -> HandBackTrace:
        """Start (or resume) the trace."""
        attributes = _begin_attributes(command, owner) | self._hardware(owner.devices)
        if command.first_ns < self.since_ns:
            attributes[Attr.RESUMED.value] = True
        ids = derived_ids(self.boot, owner.name, command.watch, command.id, command.first_ns)
        trace = HandBackTrace.begin(command.first_ns, attributes, ids=ids, clock=self.clock)
        self.traces[owner.name] = trace
        if command.trigger is Trigger.HOLD:
            self.metrics.hold_started(owner.name, self.clock.to_wall_ns(command.first_ns) / 1e9)
        return trace

    def _hardware(self, devices: Sequence[str]) -> dict[str, Value]:
        """What all of these devices have in common."""
        each = [self.hardware.get(device, {}) for device in devices]
        first = each[0] if each else {}
        return {key.value: text for key, text in first.items() if all(one.get(key) == text for one in each)}

    def take(self, owner: str) -> HandBackTrace | None:
        """The trace under way, to be finished: another may begin at once."""
        return self.traces.pop(owner, None)

    def finish(self, command: Finish, trace: HandBackTrace | None) -> None:
        """End a trace that was taken; count, and say so."""
        if command.owner not in self.traces:
            self.metrics.hold_ended(command.owner)
        if trace is None:
            return
        report = command.report
        if report.trigger is Trigger.HOLD:
            trace.phase(Phase.OWNER_HOLD, report.first_ns, report.release_ns or report.end_ns)
        for step in steps(report):
            attributes = {Attr.ATTEMPTS.value: step.attempts} if step.attempts else {}
            trace.phase(step.phase, step.start_ns, step.end_ns, attributes, step.error_type)
        summary = trace.finish(report.end_ns, report.outcome, _end_attributes(report), report.error_type)
        held = report.trigger is Trigger.HOLD
        self.metrics.handback(
            report.outcome,
            report.trigger,
            summary.total_seconds if held else 0.0,
            summary.phase_seconds,
            summary.unexplained_seconds,
            summary.trace_id,
            summary.span_id,
            summary.complete,
        )
        for witness in report.late:
            self.metrics.witness_late(witness)
        with bind(trace):
            _log.log(
                logging.INFO if report.error_type is None else logging.ERROR,
                _sentence(report),
                extra={
                    "owner": command.owner,
                    "outcome": report.outcome.value,
                    "trigger": report.trigger.value,
                    "total_ms": round(summary.total_ns / 1e6, 3),
                    "phases_ms": {name: round(ns / 1e6, 3) for name, ns in summary.phases_ns.items()},
                    "unexplained_ms": round(summary.unexplained_ns / 1e6, 3),
                    "late": [witness.value for witness in report.late],
                    "missing": [witness.value for witness in report.missing],
                    "holders": [str(holder) for holder in report.holders],
                },
            )


def _sentence(report: Report) -> str:
    """The outcome for a person."""
    took = f"{(report.end_ns - report.first_ns) / 1e6:.1f} ms"
    text = f"hand-back {report.outcome} after {took}"
    if report.missing:
        text += f", unproven: {', '.join(report.missing)}"
    if report.holders:
        text += f", held by {', '.join(map(str, report.holders))}"
    return text


def _begin_attributes(command: Begin, owner: OwnerState) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        Attr.OWNER.value: owner.name,
        Attr.DEVICES.value: list(owner.devices),
        Attr.TRIGGER.value: command.trigger.value,
        Attr.SPOT_CONTAINERS.value: [spot.id for spot in command.spots],
        Attr.SPOT_CGROUPS.value: [str(spot.cgroup) for spot in command.spots],
    }
    if owner.container is not None:
        attributes[Attr.CONTAINER_ID.value] = owner.container.id
    if command.watch is not None:
        attributes |= {Attr.WATCH.value: command.watch, Attr.RETURN.value: command.id}
    if command.caller is not None:
        attributes |= {
            Attr.PROCESS_PID.value: command.caller.pid,
            Attr.THREAD_ID.value: command.caller.tid,
            Attr.PROCESS_EXECUTABLE_NAME.value: command.caller.comm,
            Attr.IOCTL.value: f"{command.caller.ioctl:#x}",
            Attr.IOCTL_CLASS.value: command.caller.ioctl_class,
        }
    return attributes


def _end_attributes(report: Report) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        Attr.REASON.value: report.reason.value,
        Attr.WITNESS_LATE.value: [witness.value for witness in report.late],
        Attr.HOLDERS.value: [str(holder) for holder in report.holders],
    }
    if report.trigger is Trigger.HOLD and report.outcome is not Outcome.ABANDONED:
        attributes |= {Attr.HOLDS.value: report.holds, Attr.KILL_PASSES.value: report.passes}
    if report.used:
        attributes[Attr.MEMORY_USED.value] = sum(used for _, used in report.used)
        attributes[Attr.MEMORY_BASELINE.value] = sum(used for _, used in report.baseline)
    return attributes
