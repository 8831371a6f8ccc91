# SPDX-License-Identifier: Apache-2.0
"""The agent's Prometheus metrics: typed methods in, one registry out.

Every label set exists from the start (a counter that appears with its first increment is invisible to
increase()), the values of each label are a closed list, and device labels are capped. Exemplars carry the
trace and span id.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spotgpu.names import (
    METRIC_PREFIX,
    DeviceState,
    EvictionMethod,
    EvictionReason,
    Outcome,
    Phase,
    Trigger,
    Witness,
)
from spotgpu.text import printable
from spotgpu_agent.clock import Clock
from spotgpu_agent.tracing import EXPORTERS, STATS, TraceStats

# 1 and 5 s are the objectives' thresholds, so they are bounds; above 60 s nothing is left to tell apart.
BLOCKED_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PHASE_BUCKETS: Final = (0.001, 0.0025, 0.005, *BLOCKED_BUCKETS)
MAX_DEVICES: Final = 64  # device labels; later ones share the label "other"

EVENT_SOURCES: Final = {
    "khook": ("hold", "release", "empty", "orphan", "gate_lost", "fenced"),
    "containerd": ("create", "start", "exit", "delete", "other"),
    "admin": ("status", "evict", "return", "lend", "other"),
}


class Metrics:
    """All metrics of one agent.

    Args:
        clock: whose error bound is exported.
        version: of spotgpu, for `spotgpu_build_info`.
        trace_stats: what went wrong with traces, counted by tracing.py and telemetry.py.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        version: str = "unknown",
        trace_stats: TraceStats = STATS,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        self._clock = clock or Clock()
        self._held: dict[str, float] = {}  # owner -> wall seconds of the first blocked call
        self._make_handback()
        self._make_eviction()
        self._make_events()
        self._make_node(version)
        self._devices = _Devices(self._clock)
        self._module = _Module()
        self.registry.register(self._devices)
        self.registry.register(self._module)
        self.registry.register(_Traces(trace_stats))

    # One hand-back ------------------------------------------------------------------------------------------

    def handback(
        self,
        outcome: str,
        trigger: str,
        blocked_s: float,
        phases: Mapping[str, float],
        unexplained_s: float,
        trace_id: str,
        span_id: str,
        complete: bool = True,
    ) -> None:
        """Count one finished hand-back.

        Args:
            outcome: one of names.Outcome.
            trigger: one of names.Trigger.
            blocked_s: seconds the owner was held; 0 when it was not.
            phases: seconds by names.Phase.
            unexplained_s: seconds in no phase.
            trace_id: 32 hex digits.
            span_id: 16 hex digits of the root span.
            complete: whether the trace explains the hand-back (Summary.complete).
        """
        exemplar = {"trace_id": trace_id, "span_id": span_id}
        self._returns.labels(Outcome(outcome).value, Trigger(trigger).value).inc(exemplar=exemplar)
        self._blocked_seconds.observe(blocked_s, exemplar)
        for name, seconds in phases.items():
            self._phase_seconds.labels(Phase(name).value).observe(seconds, exemplar)
        self._unexplained_seconds.observe(unexplained_s, exemplar)
        self._traces.labels("true" if complete else "false").inc()

    def hold_started(self, owner: str, since_wall_s: float) -> None:
        """An owner is blocked.

        Args:
            owner: its name in the configuration; a key, not a label.
            since_wall_s: seconds since the epoch of its first blocked call.
        """
        self._held[owner] = since_wall_s
        self._show_held()

    def hold_ended(self, owner: str) -> None:
        """An owner is blocked no more. Harmless when it was not."""
        self._held.pop(owner, None)
        self._show_held()

    def _show_held(self) -> None:
        self._blocked_now.set(len(self._held))
        self._blocked_since.set(min(self._held.values(), default=0))

    def witness_late(self, witness: str) -> None:
        """A witness (names.Witness) came late, or never."""
        self._witness_late.labels(Witness(witness).value).inc()

    def eviction(self, reason: str, method: str, seconds: float, trace_id: str, span_id: str = "") -> None:
        """Count one evicted spot container.

        Args:
            reason: one of names.EvictionReason.
            method: one of names.EvictionMethod.
            seconds: from the first signal to the empty cgroup.
            trace_id: of the hand-back, 32 hex digits; empty when there is none.
            span_id: 16 hex digits; may be empty.
        """
        exemplar = {"trace_id": trace_id, "span_id": span_id} if trace_id else None
        self._evictions.labels(EvictionReason(reason).value, EvictionMethod(method).value).inc(
            exemplar=exemplar
        )
        self._eviction_seconds.labels(EvictionMethod(method).value).observe(seconds, exemplar)

    # Sources ------------------------------------------------------------------------------------------------

    def event(self, source: str, kind: str, lag_s: float | None = None) -> None:
        """Count one event from a source.

        Args:
            source: one of EVENT_SOURCES.
            kind: its type; an unknown one is counted as `other` where the source has it.
            lag_s: seconds from the event to its arrival here, if known.
        """
        kinds = EVENT_SOURCES[source]
        self._events.labels(source, kind if kind in kinds else "other").inc()
        if lag_s is not None:
            self._event_lag.labels(source).set(max(0.0, lag_s))

    def event_lost(self, source: str, n: int = 1) -> None:
        """Events of a source were lost (ENOBUFS, a broken stream); at least n of them."""
        self._events_lost.labels(source).inc(n)

    # Node ---------------------------------------------------------------------------------------------------

    def device(self, device: str, state: str, owner: str = "") -> None:
        """A device is in a state (names.DeviceState) from now on; its seconds are summed by state.

        Args:
            device: UUID.
            state: one of names.DeviceState.
            owner: name of its owner in the configuration.
        """
        self._devices.enter(device, DeviceState(state), owner)

    def device_healthy(self, device: str, healthy: bool) -> None:
        """A device's health axis: False after an unproven release, an Xid, or a lost device."""
        self._devices.health(device, healthy)

    def set_khook(self, now: Mapping[str, int], total: Mapping[str, int], version: str | None = None) -> None:
        """What the module says of itself, by the names of khook.h without KHOOK_A_STAT_, in lower case.

        Args:
            now: present numbers (`gates`).
            total: counters (`deadline_eio`).
            version: the module's ABI version, for `spotgpu_module_info`.
        """
        self._module.stats = {**now, **total}
        if version is not None:
            self._module_info.info({"version": printable(version, 64)})

    def heartbeat(self, wall_s: float) -> None:
        """khook answered a heartbeat at this time (seconds since the epoch)."""
        self._heartbeat.set(wall_s)

    def ready(self, ready: bool) -> None:
        """Whether the agent is ready (armed, sources connected)."""
        self._ready.set(1 if ready else 0)

    def nvml_abandoned(self) -> None:
        """An NVML child did not answer in time and was left behind."""
        self._nvml_abandoned.inc()

    # Making -------------------------------------------------------------------------------------------------

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(METRIC_PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(METRIC_PREFIX + name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(METRIC_PREFIX + name, text, labels, registry=self.registry, buckets=buckets)

    def _make_handback(self) -> None:
        self._returns = self._counter(
            "owner_returns_total",
            f"Hand-backs by how they ended ({_values(Outcome)}) and "
            f"what told of the return ({_values(Trigger)}).",
            ("outcome", "trigger"),
        )
        for outcome in Outcome:
            for trigger in Trigger:
                self._returns.labels(outcome.value, trigger.value)
        self._blocked_seconds = self._histogram(
            "owner_blocked_seconds", "Time an owner was held, from its first blocked call.", BLOCKED_BUCKETS
        )
        self._phase_seconds = self._histogram(
            "owner_return_phase_duration_seconds",
            f"Time of each phase of a hand-back ({_values(Phase)}).",
            PHASE_BUCKETS,
            ("phase",),
        )
        for phase in Phase:
            self._phase_seconds.labels(phase.value)
        self._unexplained_seconds = self._histogram(
            "owner_return_unexplained_seconds",
            "Time of a hand-back that is in none of its phases.",
            PHASE_BUCKETS,
        )
        self._blocked_now = self._gauge("owner_blocked", "Owners held at this moment.")
        self._blocked_since = self._gauge(
            "owner_blocked_since_timestamp_seconds",
            "When the owner that has been held longest was first blocked; 0 when none is.",
        )
        self._witness_late = self._counter(
            "witness_late_total", f"Witnesses ({_values(Witness)}) that came late or never.", ("witness",)
        )
        for witness in Witness:
            self._witness_late.labels(witness.value)
        self._traces = self._counter(
            "traces_total", "Hand-back traces by whether they explain the hand-back.", ("complete",)
        )
        for complete in ("true", "false"):
            self._traces.labels(complete)

    def _make_eviction(self) -> None:
        self._evictions = self._counter(
            "evictions_total",
            f"Spot containers evicted by reason ({_values(EvictionReason)}) "
            f"and method ({_values(EvictionMethod)}).",
            ("reason", "method"),
        )
        self._eviction_seconds = self._histogram(
            "eviction_duration_seconds",
            "Time from the first signal to the empty cgroup.",
            PHASE_BUCKETS,
            ("method",),
        )
        for method in EvictionMethod:
            self._eviction_seconds.labels(method.value)
            for reason in EvictionReason:
                self._evictions.labels(reason.value, method.value)

    def _make_events(self) -> None:
        self._events = self._counter(
            "events_total", "Events received by source and type.", ("source", "type")
        )
        self._events_lost = self._counter(
            "events_lost_total", "Events known to be lost by source.", ("source",)
        )
        self._event_lag = self._gauge(
            "event_lag_seconds", "Time from the newest event of a source to its arrival.", ("source",)
        )
        for source, kinds in EVENT_SOURCES.items():
            self._events_lost.labels(source)
            self._event_lag.labels(source)
            for kind in kinds:
                self._events.labels(source, kind)

    def _make_node(self, version: str) -> None:
        build = Info(METRIC_PREFIX + "build", "What runs.", registry=self.registry)
        build.info({"version": version, "python": platform.python_version()})
        self._module_info = Info(METRIC_PREFIX + "module", "The loaded khook module.", registry=self.registry)
        self._heartbeat = self._gauge(
            "module_heartbeat_timestamp_seconds", "When khook last answered a heartbeat; 0 before the first."
        )
        self._ready = self._gauge("agent_ready", "1 when the agent is armed and connected to its sources.")
        self._nvml_abandoned = self._counter(
            "nvml_abandoned_total", "NVML children that did not answer in time and were left behind."
        )
        error = self._gauge(
            "clock_offset_error_seconds", "Bound on the error of kernel time converted to wall time."
        )
        error.set_function(lambda: self._clock.offset().error_ns / 1e9)


def _values(names: type[StrEnum]) -> str:
    return ", ".join(names)


@dataclass(slots=True)
class _Device:
    state: DeviceState
    since_ns: int
    owner: str
    healthy: bool = True
    ns: dict[DeviceState, int] = field(default_factory=lambda: dict.fromkeys(DeviceState, 0))


class _Devices(Collector):
    """State and seconds of each device, computed when asked so that a scrape is never behind."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {}
        self._lock = Lock()  # scrapes come from a thread

    def enter(self, uuid: str, state: DeviceState, owner: str) -> None:
        with self._lock:
            device = self._get(uuid)
            self._account(device)
            device.state, device.owner = state, printable(owner, 64) or device.owner

    def health(self, uuid: str, healthy: bool) -> None:
        with self._lock:
            self._get(uuid).healthy = healthy

    def _get(self, uuid: str) -> _Device:
        label = printable(uuid, 64)
        if label not in self._devices and len(self._devices) >= MAX_DEVICES:
            label = "other"
        return self._devices.setdefault(label, _Device(DeviceState.ACTIVE, self._clock.monotonic_ns(), ""))

    def _account(self, device: _Device) -> None:
        now = self._clock.monotonic_ns()
        device.ns[device.state] += now - device.since_ns
        device.since_ns = now

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        state = GaugeMetricFamily(
            METRIC_PREFIX + "device_state",
            f"1 for the state a device is in ({_values(DeviceState)}).",
            labels=("device", "owner", "state"),
        )
        healthy = GaugeMetricFamily(
            METRIC_PREFIX + "device_healthy", "0 for a device that is quarantined.", labels=("device",)
        )
        active = _seconds("owner_active", "Time the device was its owner's (active, returning).")
        idle = _seconds("idle_gpu", "Time the owner did not use the device (lendable, lent).")
        lent = _seconds("lent_gpu", "Time the device was lent.")
        with self._lock:
            for device in self._devices.values():
                self._account(device)
            devices = {uuid: replace(device, ns=dict(device.ns)) for uuid, device in self._devices.items()}
        for uuid, device in devices.items():
            for each in DeviceState:
                state.add_metric((uuid, device.owner, each.value), float(each is device.state))
            healthy.add_metric((uuid,), float(device.healthy))
            ns = device.ns
            active.add_metric((uuid,), (ns[DeviceState.ACTIVE] + ns[DeviceState.RETURNING]) / 1e9)
            idle.add_metric((uuid,), (ns[DeviceState.LENDABLE] + ns[DeviceState.LENT]) / 1e9)
            lent.add_metric((uuid,), ns[DeviceState.LENT] / 1e9)
        yield from (state, healthy, active, idle, lent)


def _seconds(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{METRIC_PREFIX}{name}_seconds", text, labels=("device",))


class _Module(Collector):
    """khook's own counters, as of the last GET_STATS; zero before it."""

    NOW: Final = {
        "gates": "Armed gates.",
        "watches": "Watches.",
        "fences": "Fenced cgroups.",
        "holds": "Calls held at this moment.",
    }
    RETURNS: Final = ("released", "empty", "deadline", "deadline_eio", "orphan", "undetected")
    # The ways in which an owner got its card without the agent's proof.
    FAILOPEN: Final = ("deadline", "orphan", "overflow")
    COUNTS: Final = {
        "restarted": ("holds_restarted", "Holds ended by a signal."),
        "fenced": ("calls_fenced", "Calls refused by a fence."),
        "killed": ("signals_sent", "SIGKILLs sent to leased cgroups."),
        "events_lost": ("events_lost", "Events the module could not deliver."),
    }

    def __init__(self) -> None:
        self.stats: dict[str, int] = {}

    def _get(self, name: str) -> int:
        return self.stats.get(name, 0)

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        for name, text in self.NOW.items():
            yield GaugeMetricFamily(f"{METRIC_PREFIX}module_{name}", text, value=self._get(name))
        returns = CounterMetricFamily(
            METRIC_PREFIX + "module_returns",
            f"Returns by how the module ended them ({', '.join(self.RETURNS)}).",
            labels=("outcome",),
        )
        for outcome in self.RETURNS:
            returns.add_metric((outcome,), self._get(outcome))
        failopen = CounterMetricFamily(
            METRIC_PREFIX + "module_failopen",
            f"Owners let through without the agent's proof ({', '.join(self.FAILOPEN)}).",
            labels=("reason",),
        )
        for reason in self.FAILOPEN:
            failopen.add_metric((reason,), self._get(reason))
        yield from (returns, failopen)
        for name, (metric, text) in self.COUNTS.items():
            yield CounterMetricFamily(f"{METRIC_PREFIX}module_{metric}", text, value=self._get(name))


class _Traces(Collector):
    """The health of the trace pipeline."""

    def __init__(self, stats: TraceStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """The families, for prometheus_client."""
        stats = self._stats
        yield CounterMetricFamily(
            METRIC_PREFIX + "trace_spans_clamped",
            "Spans whose end was before their start.",
            value=stats.clamped,
        )
        yield CounterMetricFamily(
            METRIC_PREFIX + "trace_steps_dropped",
            "Phases and events above the bounds of a trace.",
            value=stats.overflow,
        )
        exported = CounterMetricFamily(
            METRIC_PREFIX + "trace_spans_exported", "Spans handed over.", labels=("exporter",)
        )
        lost = CounterMetricFamily(
            METRIC_PREFIX + "trace_spans_lost",
            "Spans lost: queue full or export failed.",
            labels=("exporter",),
        )
        for exporter in EXPORTERS:
            exported.add_metric((exporter,), stats.exported[exporter])
            lost.add_metric((exporter,), stats.lost[exporter])
        yield from (exported, lost)
        yield CounterMetricFamily(
            METRIC_PREFIX + "otlp_export_failures",
            "Exports to the OTLP endpoint that failed.",
            value=stats.failures["otlp"],
        )
        yield CounterMetricFamily(
            METRIC_PREFIX + "trace_file_failures",
            "Batches that could not be written to the trace file.",
            value=stats.failures["file"],
        )
