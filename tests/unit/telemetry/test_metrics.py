# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest as plain
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from spotgpu.names import DeviceState, EvictionMethod, EvictionReason, Outcome, Phase, Trigger, Witness
from spotgpu_agent.clock import Clock
from spotgpu_agent.metrics import EVENT_SOURCES, MAX_DEVICES, Metrics, _Module
from spotgpu_agent.tracing import TraceStats
from spotgpu_khook import abi as khook

TRACE, SPAN = "a" * 32, "b" * 16


class Ticking:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def ticking() -> Any:
    return Ticking()


@pytest.fixture
def metrics(ticking: Ticking) -> Any:
    return Metrics(Clock(monotonic=ticking), version="1.2.3", trace_stats=TraceStats())


def families(metrics: Metrics) -> dict[str, Any]:
    text = openmetrics(metrics.registry).decode()  # type: ignore[no-untyped-call]
    return {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]


def value(metrics: Metrics, name: Any, **labels: Any) -> Any:
    found = metrics.registry.get_sample_value(f"spotgpu_{name}", labels)
    assert found is not None, f"{name}{labels} does not exist"
    return found


def test_every_label_set_exists_before_anything_happens(metrics: Metrics) -> None:
    for outcome, trigger in product(Outcome, Trigger):
        assert value(metrics, "owner_returns_total", outcome=outcome, trigger=trigger) == 0
    for reason, method in product(EvictionReason, EvictionMethod):
        assert value(metrics, "evictions_total", reason=reason, method=method) == 0
    for phase in Phase:
        assert value(metrics, "owner_return_phase_duration_seconds_count", phase=phase) == 0
    for method in EvictionMethod:
        assert value(metrics, "eviction_duration_seconds_count", method=method) == 0
    for witness in Witness:
        assert value(metrics, "witness_late_total", witness=witness) == 0
    for source, kinds in EVENT_SOURCES.items():
        assert value(metrics, "events_lost_total", source=source) == 0
        for kind in kinds:
            assert value(metrics, "events_total", source=source, type=kind) == 0
    for complete in ("true", "false"):
        assert value(metrics, "traces_total", complete=complete) == 0
    for exporter in ("file", "otlp"):
        assert value(metrics, "trace_spans_lost_total", exporter=exporter) == 0
    for cause in ("deadline", "orphan", "overflow"):
        assert value(metrics, "module_failopen_total", reason=cause) == 0
    assert value(metrics, "otlp_export_failures_total") == 0
    assert (
        value(
            metrics,
            "build_info",
            version="1.2.3",
            python=re.sub(r"\+.*", "", __import__("platform").python_version()),
        )
        == 1
    )


def full(metrics: Metrics) -> Any:
    """Everything used once."""
    metrics.handback("released", "hold", 0.3, {"evict.kill": 0.01, "owner.hold": 0.3}, 0.02, TRACE, SPAN)
    metrics.eviction("OwnerBack", "khook", 0.2, TRACE, SPAN)
    metrics.event("khook", "hold", 0.001)
    metrics.device("GPU-1", "lent", "dev-box")
    metrics.set_khook({"holds": 1}, {"deadline": 2}, "1")
    return metrics


def test_names_are_what_promtool_wants(metrics: Metrics) -> None:
    """Prefix, base units, and the suffix that the type asks for: prometheus.io/docs/practices/naming."""
    for name, family in families(full(metrics)).items():
        assert re.fullmatch(r"spotgpu_[a-z][a-z0-9_]*[a-z0-9]", name), name
        assert family.documentation.endswith("."), name
        assert not re.search(
            r"_(ms|milliseconds|micros|microseconds|nanoseconds|ns|minutes|hours|kb|mb|gb|mib|kib|percent)(_|$)",
            name,
        )
        assert not re.search(r"(counter|gauge|histogram|summary|metric)", name), name
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_info")), name
        samples = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert samples == {f"{name}_total"}, name
        elif family.type == "histogram":
            assert name.endswith(("_seconds", "_bytes")), name
        elif family.type == "info":
            assert samples <= {f"{name}_info"}, name
        else:
            assert (family.type, samples) == ("gauge", {name})
        assert not any(sample.name.endswith("_created") for sample in family.samples), name
        for sample in family.samples:
            assert all(re.fullmatch(r"[a-z_]+", label) for label in sample.labels), name


def test_a_timestamp_and_a_duration_are_seconds(metrics: Metrics) -> None:
    for name in families(full(metrics)):
        if "since" in name or "timestamp" in name:
            assert name.endswith("_timestamp_seconds")
        if "duration" in name or "lag" in name or "unexplained" in name:
            assert name.endswith("_seconds")


def test_thresholds_of_the_objectives_are_exact_bounds(metrics: Metrics) -> None:
    text = openmetrics(metrics.registry).decode()  # type: ignore[no-untyped-call]
    for bound in ("1.0", "5.0"):
        assert f'spotgpu_owner_blocked_seconds_bucket{{le="{bound}"}} 0.0' in text
        assert (
            f'spotgpu_owner_return_phase_duration_seconds_bucket{{le="{bound}",phase="release"}} 0.0' in text
        )


def test_exemplars_lead_to_the_trace(metrics: Metrics) -> None:
    found = families(full(metrics))
    want = {"trace_id": TRACE, "span_id": SPAN}
    for name in (
        "spotgpu_owner_returns",
        "spotgpu_owner_blocked_seconds",
        "spotgpu_owner_return_phase_duration_seconds",
        "spotgpu_owner_return_unexplained_seconds",
        "spotgpu_evictions",
        "spotgpu_eviction_duration_seconds",
    ):
        exemplars = [sample.exemplar.labels for sample in found[name].samples if sample.exemplar]
        assert want in exemplars, name
        assert all(exemplar == want for exemplar in exemplars), name


def test_the_old_format_is_served_too(metrics: Metrics) -> None:
    text = plain(full(metrics).registry).decode()
    assert 'spotgpu_owner_returns_total{outcome="released",trigger="hold"} 1.0' in text
    assert "_created" not in text


def test_a_hand_back_without_a_trace_is_counted(metrics: Metrics) -> None:
    metrics.eviction("Admin", "cgroup.kill", 1.0, "")
    assert value(metrics, "evictions_total", reason="Admin", method="cgroup.kill") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.handback("lost", "hold", 1, {}, 0, TRACE, SPAN),
        lambda m: m.handback("released", "guess", 1, {}, 0, TRACE, SPAN),
        lambda m: m.handback("released", "hold", 1, {"nap": 1}, 0, TRACE, SPAN),
        lambda m: m.eviction("Because", "khook", 1, TRACE),
        lambda m: m.witness_late("neighbour"),
        lambda m: m.device("GPU-1", "resting"),
        lambda m: m.event("weather", "rain"),
    ],
)
def test_values_outside_the_closed_lists_are_refused(metrics: Metrics, call: Any) -> None:
    with pytest.raises((ValueError, KeyError)):
        call(metrics)
    assert value(metrics, "traces_total", complete="true") == 0


def test_held_owners_and_since_when(metrics: Metrics) -> None:
    metrics.hold_started("a", 100.0)
    metrics.hold_started("b", 90.5)
    assert (value(metrics, "owner_blocked"), value(metrics, "owner_blocked_since_timestamp_seconds")) == (
        2,
        90.5,
    )
    metrics.hold_ended("b")
    metrics.hold_ended("b")
    assert (value(metrics, "owner_blocked"), value(metrics, "owner_blocked_since_timestamp_seconds")) == (
        1,
        100,
    )
    metrics.hold_ended("a")
    assert (value(metrics, "owner_blocked"), value(metrics, "owner_blocked_since_timestamp_seconds")) == (
        0,
        0,
    )


def test_seconds_by_state_are_current_at_each_scrape(metrics: Metrics, ticking: Ticking) -> None:
    metrics.device("GPU-1", "active", "dev-box")
    for state, seconds in (("lendable", 10), ("lent", 20), ("returning", 30), ("active", 1)):
        ticking.now += seconds * 10**9
        metrics.device("GPU-1", state)
    ticking.now += 5 * 10**9
    got = [
        value(metrics, f"{name}_seconds_total", device="GPU-1")
        for name in ("owner_active", "idle_gpu", "lent_gpu")
    ]
    assert got == [10 + 1 + 5, 20 + 30, 30]
    ticking.now += 5 * 10**9
    assert value(metrics, "owner_active_seconds_total", device="GPU-1") == 21
    for state in DeviceState:
        assert value(metrics, "device_state", device="GPU-1", owner="dev-box", state=state) == (
            state == "active"
        )
    assert value(metrics, "device_healthy", device="GPU-1") == 1
    metrics.device_healthy("GPU-1", False)
    assert value(metrics, "device_healthy", device="GPU-1") == 0


def test_device_labels_are_capped_and_clean(metrics: Metrics) -> None:
    for n in range(MAX_DEVICES + 50):
        metrics.device(f"GPU-{n}\n\x1b[2J", "active", 'owner"\n')
    devices = {sample.labels["device"] for sample in families(metrics)["spotgpu_device_healthy"].samples}
    assert len(devices) == MAX_DEVICES + 1
    assert "other" in devices
    assert all(device.isprintable() for device in devices)


def test_an_unknown_kind_of_event_is_other(metrics: Metrics) -> None:
    metrics.event("containerd", "/tasks/weird")
    metrics.event_lost("khook", 5)
    assert value(metrics, "events_total", source="containerd", type="other") == 1
    assert value(metrics, "events_lost_total", source="khook") == 5


def test_the_module_counts_by_itself(metrics: Metrics) -> None:
    now = {"gates": 2, "watches": 3, "holds": 1}
    total = {"deadline": 4, "orphan": 5, "overflow": 6, "released": 7, "killed": 8}
    metrics.set_khook(now, total, version="1\n")
    assert value(metrics, "module_gates") == 2
    assert value(metrics, "module_returns_total", outcome="released") == 7
    assert value(metrics, "module_failopen_total", reason="overflow") == 6
    assert value(metrics, "module_signals_sent_total") == 8
    assert value(metrics, "module_info", version="1\\n") == 1


def test_the_module_is_asked_by_names_it_has() -> None:
    there = {attr.name.removeprefix("STAT_").lower() for attr in khook.Attr if attr.name.startswith("STAT_")}
    asked = {*_Module.NOW, *_Module.RETURNS, *_Module.FAILOPEN, *_Module.COUNTS}
    assert asked <= there
    assert there - asked <= {"returns", "holds_total", "selftests"}


def test_clock_error_is_shown(metrics: Metrics) -> None:
    assert 0 <= value(metrics, "clock_offset_error_seconds") < 1
