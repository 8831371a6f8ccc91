# SPDX-License-Identifier: Apache-2.0
"""The hardware check against the simulated GPU: it counts what the driver says that it executed."""

from __future__ import annotations

import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hw.loading import SCRIPT, load
from tests.sim.nvsim import BUILD, Sim

hw = load()
GPUS = 2
NOBODY = 65534
FIXED_MS, PER_GIB_MS, LATER_MS = 300, 200, 400
CTX_GIB = 300 / 1024  # the simulated context's own memory, nvsim's default ctx_mib
# What the driver calls what it executed -> (node, call, RM class) as the tracer has it.
COUNTERS = {
    "alloc_root": ("nvidiactl", "RM_ALLOC", 0x41),
    "alloc_device": ("nvidiactl", "RM_ALLOC", 0x80),
    "alloc_subdevice": ("nvidiactl", "RM_ALLOC", 0x2080),
    "alloc_vaspace": ("nvidiactl", "RM_ALLOC", 0x90F1),
    "alloc_channel_group": ("nvidiactl", "RM_ALLOC", 0xA06C),
    "alloc_gpfifo": ("nvidiactl", "RM_ALLOC", 0xC56F),
    "alloc_compute": ("nvidiactl", "RM_ALLOC", 0xC6C0),
    "alloc_memory": ("nvidiactl", "RM_ALLOC", 0x40),
    "free": ("nvidiactl", "RM_FREE", None),
    "control": ("nvidiactl", "RM_CONTROL", None),
    "map": ("nvidiactl", "RM_MAP_MEMORY", None),
    "uvm_initialize": ("nvidia-uvm", "UVM_INITIALIZE", None),
    "uvm_mm_initialize": ("nvidia-uvm", "UVM_MM_INITIALIZE", None),
    "uvm_register_gpu": ("nvidia-uvm", "UVM_REGISTER_GPU", None),
    "uvm_register_gpu_vaspace": ("nvidia-uvm", "UVM_REGISTER_GPU_VASPACE", None),
    "uvm_register_channel": ("nvidia-uvm", "UVM_REGISTER_CHANNEL", None),
    "uvm_map_external": ("nvidia-uvm", "UVM_MAP_EXTERNAL", None),
}
FRONTEND = ("CARD_INFO", "REGISTER_FD", "CHECK_VERSION_STR", "SYS_PARAMS")


@pytest.fixture(autouse=True, scope="module")
def _one_cpu() -> Iterator[None]:
    """Tracer and traced take turns, and waking another CPU is slow in an emulated machine."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(name="sim", scope="module")
def _sim() -> Iterator[Sim]:
    Sim.install_libraries()
    loaded = Sim.load(
        gpus=GPUS, memory_mib=8192, teardown_ms_per_ctx=FIXED_MS, teardown_ms_per_gib=PER_GIB_MS
    )
    yield loaded
    loaded.unload()


def traced(sim: Sim, argv: list[str]) -> tuple[Any, dict[str, int]]:
    """Run a program under the tracer. Returns the trace, and what the driver counted meanwhile."""
    before = sim.counters()
    done = hw.trace(argv, hw.majors_here())
    after = sim.counters()
    return done, {name: after[name] - before[name] for name in after if after[name] != before[name]}


def as_the_driver_counts(events: list[Any]) -> dict[str, int]:
    """Count a trace's events under the names of the driver's counters. KeyError: it has no such counter."""
    names = {key: name for name, key in COUNTERS.items()}
    names |= {(node, call, None): "frontend" for node in ("nvidiactl", "nvidiaN") for call in FRONTEND}
    counts = collections.Counter(names[hw.key_of(event)] for event in hw.ioctls(events))
    counts["opens"] = sum(event.kind == "open" for event in events)
    counts["compute"] = sum(hw.is_return(event) for event in events)
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["compute", "-n", "23"],
            {"opens": 1, "alloc_root": 1, "alloc_device": 1, "alloc_vaspace": 23, "free": 22, "compute": 23},
        ),
        (["query", "-n", "19", "-t", "3"], {"opens": 3, "alloc_root": 3, "control": 57}),
        (["uvm", "-n", "17"], {"opens": 1, "uvm_initialize": 17, "compute": 17}),
    ],
)
def test_a_known_workload_is_counted_as_the_driver_does(
    sim: Sim, words: list[str], expected: dict[str, int]
) -> None:
    done, counted = traced(sim, [str(BUILD / "bin/nvcall"), *words, "--summary"])
    assert done.status == 0
    assert as_the_driver_counts(done.events) == expected
    assert {name: count for name, count in counted.items() if name != "closes"} == expected


@pytest.mark.parametrize(("kind", "words"), [("query", [2]), ("cuda", [0])])
def test_its_own_clients_are_counted_as_the_driver_does(sim: Sim, kind: str, words: list[int]) -> None:
    done, counted = traced(sim, hw.child_argv(kind, *words))
    assert done.status == 0, done.stdout
    closes = counted.pop("closes")
    assert as_the_driver_counts(done.events) == counted
    assert counted["opens"] == closes
    assert ("compute" in counted) == (kind == "cuda")


@pytest.fixture(name="home", scope="module")
def _home() -> Iterator[Path]:
    """A folder where an ordinary user may write; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o777)
        yield Path(home)


@pytest.fixture(name="whole", scope="module")
def _whole(sim: Sim, home: Path) -> tuple[dict[str, Any], str]:
    """The whole check by an ordinary user, from a copy of the one file: its JSON and what it printed."""
    script = shutil.copy(SCRIPT, home)
    sim.set_knob("async_free_ms", LATER_MS)
    options = ["--loops", "2", "--sizes", "1,4", "--rounds", "1", "--json", str(home / "raw.json")]
    done = subprocess.run(
        [sys.executable, script, *options],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    sim.set_knob("async_free_ms", 0)
    Path(os.environ["RESULTS"], "trace_ioctls.txt").write_text(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads((home / "raw.json").read_text()), done.stdout


def events_of(trace: dict[str, Any]) -> list[Any]:
    return [hw.Event(**fields) for fields in trace["events"]]


def test_the_whole_check_says_that_the_table_is_right(whole: tuple[dict[str, Any], str]) -> None:
    raw, text = whole
    assert text.rstrip().endswith("verdict: the classifier's table is right")
    assert not raw["wrong"]
    assert raw["machine"]["devices"] == GPUS
    rows = {(row["node"], row["call"], row["rm_class"]): row for row in raw["rows"]}
    counts = {key: (row["queries"], row["cuda"]) for key, row in rows.items()}
    # An event set is a client of its own in NVML; CUDA maps its doorbell and the memory that it copies to.
    expected = {name: (0, 1) for name in COUNTERS if name not in ("free", "control")}
    expected |= {
        "alloc_root": (2, 1),
        "alloc_device": (GPUS, GPUS),
        "alloc_subdevice": (GPUS, GPUS),
        "map": (0, 2),
    }
    assert {name: counts[COUNTERS[name]] for name in expected} == expected
    called = {key: row["khook"] for key, row in rows.items()}
    assert {key for key, name in called.items() if name == "compute"} == {
        COUNTERS[name] for name in ("alloc_vaspace", "alloc_channel_group", "alloc_gpfifo", "alloc_compute")
    }
    assert {key for key, name in called.items() if name == "uvm"} == {
        key for key in rows if key[0] == "nvidia-uvm"
    }
    first = [key for key, row in rows.items() if row["verdict"] == "ok: the first return"]
    assert first == [COUNTERS["uvm_initialize"]]


def test_a_wrong_table_is_said_to_be_wrong(whole: tuple[dict[str, Any], str]) -> None:
    queries, cuda = events_of(whole[0]["query"]), events_of(whole[0]["cuda"])
    assert not hw.judge(queries, cuda).wrong

    def kinds(table: Any) -> list[str]:
        return [finding.kind for finding in hw.judge(queries, cuda, table).findings if finding.wrong]

    assert kinds(hw.Table(vaspace=0x80)) == ["false return"]
    assert kinds(hw.Table(vaspace=0, channel_group=0, families=())) == ["missed return"]
    without_uvm = [event for event in cuda if event.node != "nvidia-uvm"]
    late = hw.judge(queries, without_uvm, hw.Table(vaspace=0))
    assert [row.rm_class for row in late.rows if row.verdict == "WRONG: missed return"] == [0x90F1]


def test_maps_closes_and_exits_are_recorded(whole: tuple[dict[str, Any], str]) -> None:
    queries, cuda = events_of(whole[0]["query"]), events_of(whole[0]["cuda"])
    found = {(use.node, use.kind): use for use in hw.uses(queries, cuda)}
    opens = {node: (use.queries, use.cuda) for (node, kind), use in found.items() if kind == "open"}
    assert opens == {"nvidia0": (1, 1), "nvidia1": (1, 1), "nvidiactl": (2, 1), "nvidia-uvm": (0, 2)}
    assert found["nvidia0", "mmap"].cuda == 2  # the doorbell, and the memory that was copied to
    closes = {node: (use.queries, use.cuda) for (node, kind), use in found.items() if kind == "close"}
    assert closes == {"nvidia0": (1, 0), "nvidia1": (1, 0), "nvidiactl": (2, 0)}  # NVML closes, CUDA exits
    (ended,) = (event for event in [*queries, *cuda] if event.kind == "exit")
    assert ended.name == "nvidia-uvm nvidia0 nvidia1 nvidiactl"


def test_the_teardown_is_what_the_driver_was_told_to_take(whole: tuple[dict[str, Any], str]) -> None:
    raw, text = whole
    assert raw["teardown_problem"] is None
    assert [each["held_bytes"] for each in raw["teardowns"]] == [hw.GIB, 4 * hw.GIB]
    for each in raw["teardowns"]:
        assert each["full_bytes"] - each["baseline_bytes"] >= each["held_bytes"]
        least_ms = FIXED_MS + PER_GIB_MS * (each["held_bytes"] / hw.GIB + CTX_GIB)
        assert least_ms <= each["reaped_ms"] < least_ms + 2000
        assert least_ms + LATER_MS <= each["memory_ms"] < least_ms + LATER_MS + 2000
    fixed, slope = raw["fits"]["reaped"]
    assert 0.6 * PER_GIB_MS < slope < 1.8 * PER_GIB_MS
    assert fixed > 0
    assert f"reaped: {fixed:.1f} ms fixed + {slope:.2f} ms per GiB" in text


def test_a_lost_gpu_ends_with_a_reason(sim: Sim) -> None:
    with sim.fault("lost", 0):
        done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert (
        "trace_ioctls: can't run here: the query client: " in done.stderr
        or "the cuda client: " in done.stderr
    )
    assert done.stdout == ""
