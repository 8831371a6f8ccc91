# SPDX-License-Identifier: Apache-2.0
"""The hardware check: its table is khook's, verdicts follow from events, the tracer sees every call."""

from __future__ import annotations

import ast
import collections
import dataclasses
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hw.loading import SCRIPT, load

hw = load()
CLASSIFY_C = Path(__file__).parents[3] / "kmod/classify.c"
MAJORS = {195: "nvidia", 511: "nvidia-uvm", 508: "nvidia-caps"}
RM_ALLOC_CMD, XFER_CMD, UVM_INITIALIZE = 0xC020462B, 0xC01046D3, 0x30000001
ROOT, DEVICE, VASPACE, GPFIFO, MEMORY = 0x41, 0x80, 0x90F1, 0xC56F, 0x40


# The table is khook's.


def defines() -> dict[str, int]:
    pairs = re.findall(r"^#define\s+(NV\w+)\s+(\w+)", CLASSIFY_C.read_text(), re.MULTILINE)
    return {name: int(value, 0) for name, value in pairs}


def test_the_constants_are_khooks() -> None:
    table = hw.TABLE
    assert defines() == {
        "NV_ESC_RM_ALLOC": table.rm_alloc,
        "NV_ESC_XFER_CMD": table.xfer_cmd,
        "NVOS_ALLOC_CLASS_OFFSET": table.class_offset,
        "NV_CLASS_VASPACE": table.vaspace,
        "NV_CLASS_CHANNEL_GROUP": table.channel_group,
        "NV_CLASS_FIRST_FAMILY": table.first_family,
        "NV_FAMILY_GPFIFO": table.families[0],
        "NV_FAMILY_COMPUTE": table.families[1],
    }
    assert len(table.families) == 2


@pytest.fixture(name="khook_compute", scope="module")
def _khook_compute(tmp_path_factory: pytest.TempPathFactory) -> set[int]:
    """The classes below 0x20000 that khook's own function, compiled here, calls compute."""
    source = CLASSIFY_C.read_text()
    function = re.search(r"^bool khook_is_compute_class.*?^}", source, re.MULTILINE | re.DOTALL)
    assert function
    program = tmp_path_factory.mktemp("khook") / "classes.c"
    program.write_text(
        "#include <stdbool.h>\n#include <stdint.h>\n#include <stdio.h>\ntypedef uint32_t u32;\n"
        + "\n".join(line for line in source.splitlines() if line.startswith("#define"))
        + f"\n{function.group()}\nint main(void)\n{{\n\tfor (u32 c = 0; c < 0x20000; c++)\n"
        '\t\tif (khook_is_compute_class(c))\n\t\t\tprintf("%u\\n", c);\n\treturn 0;\n}\n'
    )
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed to run khook's rule"
    binary = program.with_suffix("")
    subprocess.run([compiler, "-Wall", "-Werror", "-o", str(binary), str(program)], check=True)
    out = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
    return {int(line) for line in out.split()}


def test_the_rule_is_khooks_for_every_class(khook_compute: set[int]) -> None:
    assert khook_compute == {c for c in range(0x20000) if hw.TABLE.is_compute_class(c)}
    assert VASPACE in khook_compute


def test_a_wrong_table_is_another_rule(khook_compute: set[int]) -> None:
    wrong = hw.Table(families=(0x6F,))
    assert khook_compute != {c for c in range(0x20000) if wrong.is_compute_class(c)}


def test_every_compute_class_makes_a_context_and_has_a_name(khook_compute: set[int]) -> None:
    for rm_class in (c for c in khook_compute if c <= 0xFFFF):
        assert hw.makes(alloc(rm_class)), hex(rm_class)
        assert hw.class_name(rm_class)


def test_it_is_python_3_9() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 9))


def test_it_imports_the_standard_library_alone() -> None:
    tree = ast.parse(SCRIPT.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


# Nodes and decoding.


def test_the_nodes_are_told_by_their_numbers() -> None:
    text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n508 nvidia-caps\n511 nvidia-uvm\n"
    text += "\nBlock devices:\n259 nvidia-not\n"
    assert hw.majors_of(text) == MAJORS
    assert hw.majors_of("Character devices:\n195 nvidia-frontend\n") == {195: "nvidia"}
    names = [
        hw.node_name(*number, MAJORS) for number in ((195, 255), (195, 254), (195, 3), (511, 0), (511, 1))
    ]
    assert names == ["nvidiactl", "nvidia-modeset", "nvidia3", "nvidia-uvm", "nvidia-uvm-tools"]
    assert hw.node_name(508, 1, MAJORS) == "nvidia-caps/1"
    assert hw.node_name(1, 3, MAJORS) is None


def reader(memory: dict[int, bytes]) -> Any:
    """Memory that holds these bytes at these addresses and nothing else."""

    def read(address: int, size: int) -> bytes | None:
        for start, content in memory.items():
            if start <= address and address + size <= start + len(content):
                return content[address - start : address - start + size]
        return None

    return read


def test_an_allocation_has_its_class_also_inside_xfer_cmd() -> None:
    arguments = struct.pack("<IIIIQII", 1, 2, 3, VASPACE, 0, 0, 0)
    wrapper = struct.pack("<IIQ", 0x2B, 32, 0x1000)
    memory = reader({0x1000: arguments, 0x2000: wrapper})
    plain = hw.decode_rm(RM_ALLOC_CMD, 0x1000, memory)
    assert plain == {"number": 0x2B, "wrapped": False, "rm_class": VASPACE}
    wrapped = hw.decode_rm(XFER_CMD, 0x2000, memory)
    assert wrapped == {"number": 0x2B, "wrapped": True, "rm_class": VASPACE}


def test_a_control_has_its_command() -> None:
    arguments = struct.pack("<IIII", 1, 2, 0x20800102, 0)
    assert hw.decode_rm(0xC020462A, 0x1000, reader({0x1000: arguments}))["control"] == 0x20800102


def test_what_cannot_be_read_is_a_query_as_in_khook() -> None:
    nothing = reader({})
    assert hw.decode_rm(RM_ALLOC_CMD, 0x1000, nothing)["rm_class"] is None
    assert hw.classify(event(node="nvidiactl", **hw.decode_rm(RM_ALLOC_CMD, 0, nothing))) == "query"
    assert hw.classify(event(node="nvidiactl", **hw.decode_rm(XFER_CMD, 0, nothing))) == "query"


# Verdicts. A trace is told by its calls, in their order.


def event(**fields: Any) -> Any:
    return hw.Event(**{"kind": "ioctl", "at_ns": 0, "took_ns": 1000, "tid": 1, **fields})


def alloc(rm_class: int, **fields: Any) -> Any:
    return event(node="nvidiactl", number=0x2B, rm_class=rm_class, **fields)


def control() -> Any:
    return event(node="nvidiactl", number=0x2A, control=0x2080)


def uvm(command: int = UVM_INITIALIZE) -> Any:
    return event(node="nvidia-uvm", number=command)


def mark(name: str) -> Any:
    return event(kind="mark", name=name)


def sequence(*events: Any) -> list[Any]:
    return [dataclasses.replace(each, at_ns=at * 1000) for at, each in enumerate(events)]


QUERIES = sequence(mark("nvmlInit_v2"), alloc(ROOT), alloc(DEVICE), control(), control())
CUDA = sequence(
    mark("cuInit"), alloc(ROOT), uvm(), alloc(DEVICE),
    mark("cuCtxCreate_v2"), uvm(37), alloc(VASPACE), alloc(GPFIFO),
    mark("cuMemAlloc_v2"), alloc(MEMORY),
)  # fmt: skip


def wrong_kinds(queries: list[Any], cuda: list[Any], table: Any = hw.TABLE) -> list[str]:
    return [finding.kind for finding in hw.judge(queries, cuda, table).findings if finding.wrong]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (alloc(ROOT), "query"),
        (alloc(VASPACE), "compute"),
        (alloc(VASPACE, wrapped=True), "compute"),
        (alloc(0xA06C), "compute"),
        (alloc(0xCBC0), "compute"),
        (alloc(MEMORY), "query"),
        (control(), "query"),
        (uvm(), "uvm"),
        (event(node="nvidia0", number=201), "query"),
        (event(node="nvidia-uvm-tools", number=1), "unwatched"),
        (event(node="nvidia-modeset", number=0x2B, rm_class=VASPACE), "unwatched"),
    ],
)
def test_an_ioctl_is_called_what_khook_calls_it(call: Any, expected: str) -> None:
    assert hw.classify(call) == expected


def test_a_right_table_is_right() -> None:
    judgement = hw.judge(QUERIES, CUDA)
    assert not judgement.wrong
    rows = {(row.node, row.call, row.rm_class): row for row in judgement.rows}
    assert (rows["nvidiactl", "RM_CONTROL", None].queries, rows["nvidiactl", "RM_CONTROL", None].cuda) == (
        2,
        0,
    )
    root = rows["nvidiactl", "RM_ALLOC", ROOT]
    assert (root.queries, root.cuda, root.khook, root.verdict) == (1, 1, "query", "ok")
    first = rows["nvidia-uvm", "UVM_INITIALIZE", None]
    assert (first.khook, first.verdict) == ("uvm", "ok: the first return")
    assert sum(row.queries + row.cuda for row in rows.values()) == 4 + 7


def test_a_compute_class_in_the_query_loop_is_a_false_return() -> None:
    judgement = hw.judge([*QUERIES, alloc(VASPACE, at_ns=99_000)], CUDA)
    assert [finding.kind for finding in judgement.findings if finding.wrong] == ["false return"]
    assert [row.rm_class for row in judgement.rows if row.verdict == "WRONG: false return"] == [VASPACE]


def test_uvm_in_the_query_loop_is_a_false_return() -> None:
    assert wrong_kinds([*QUERIES, uvm()], CUDA) == ["false return"]


@pytest.mark.parametrize("early", [alloc(MEMORY), alloc(0x9067), event(node="nvidiactl", number=0x4A)])
def test_memory_or_context_before_the_first_return_is_a_missed_return(early: Any) -> None:
    judgement = hw.judge(QUERIES, sequence(early, *CUDA))
    assert [finding.kind for finding in judgement.findings if finding.wrong] == ["missed return"]
    assert [row.verdict for row in judgement.rows if row.verdict.startswith("WRONG")] == [
        "WRONG: missed return"
    ]


def test_memory_that_the_query_loop_makes_too_is_no_missed_return() -> None:
    assert wrong_kinds([*QUERIES, alloc(MEMORY)], sequence(alloc(MEMORY), *CUDA)) == []


def test_a_context_made_before_the_first_return_is_a_missed_return() -> None:
    late = sequence(mark("cuCtxCreate_v2"), control(), mark("cuMemAlloc_v2"), uvm(), alloc(VASPACE))
    assert wrong_kinds(QUERIES, late) == ["missed return"]
    in_time = sequence(mark("cuCtxCreate_v2"), uvm(), alloc(VASPACE), mark("cuMemAlloc_v2"))
    assert wrong_kinds(QUERIES, in_time) == []


def test_no_return_at_all_is_a_missed_return() -> None:
    assert "missed return" in wrong_kinds(QUERIES, sequence(alloc(ROOT), control()))


def test_classes_that_only_uvm_makes_up_for_are_wrong() -> None:
    blind = hw.Table(vaspace=0, channel_group=0, families=())
    assert wrong_kinds(QUERIES, CUDA, blind) == ["missed return"]


def test_a_wrong_table_is_said_to_be_wrong() -> None:
    assert wrong_kinds(QUERIES, CUDA, hw.Table(vaspace=ROOT)) == ["false return"]


def test_an_unknown_class_before_the_first_return_is_wrong_and_later_a_note() -> None:
    early = hw.judge(QUERIES, sequence(alloc(0x7777), *CUDA))
    assert early.wrong
    assert "WRONG: unknown class" in [row.verdict for row in early.rows]
    late = hw.judge(QUERIES, [*CUDA, alloc(0x7777, at_ns=99_000)])
    assert not late.wrong
    assert "unknown class" in [finding.kind for finding in late.findings]
    assert "ok, unknown class" in [row.verdict for row in late.rows]


def test_the_order_is_that_of_time_not_of_the_list() -> None:
    """Threads end their calls in another order than they began them."""
    assert wrong_kinds(QUERIES, list(reversed(CUDA))) == []


# Teardown and report.


def test_the_fit_is_the_line_through_the_points() -> None:
    fixed, slope = hw.fit([(1, 130.0), (2, 160.0), (4, 220.0)])
    assert (fixed, slope) == (pytest.approx(100.0), pytest.approx(30.0))
    fixed, slope = hw.fit([(0, 1.0), (1, 1.0), (2, 4.0)])
    assert (fixed, slope) == (pytest.approx(0.5), pytest.approx(1.5))


def test_the_median_is_the_middle_or_between_both() -> None:
    assert (hw.median([9, 1, 5]), hw.median([4, 1, 9, 2]), hw.median([7])) == (5, 3, 7)


def test_one_size_is_no_fit() -> None:
    assert hw.fit([(1, 130.0), (1, 140.0)]) is None
    assert hw.fit([]) is None


def test_sizes_are_those_that_fit() -> None:
    gib = hw.GIB
    assert hw.sizes_that_fit([], 80 * gib) == [10 * gib, 20 * gib, 40 * gib]
    assert hw.sizes_that_fit([], gib) == [gib // 4, gib // 2]
    assert hw.sizes_that_fit([], 100) == []
    assert hw.sizes_that_fit([0.5, 9, 10], 10 * gib) == [gib // 2, 9 * gib]


def test_the_teardown_is_told_with_its_fit_and_what_never_came_back() -> None:
    gib = hw.GIB
    found = [hw.Teardown(size * gib, 0, size * gib, 100.0 + 30 * size, None) for size in (1, 2)]
    text = "\n".join(hw.teardown_lines(found, "the card fell off the bus"))
    assert "reaped: 100.0 ms fixed + 30.00 ms per GiB" in text
    assert "never" in text
    assert "memory back:" not in text
    assert "not measured to its end: the card fell off the bus" in text


def test_opens_closes_and_exits_are_counted_by_node() -> None:
    opened = [event(kind="open", node="nvidiactl", took_ns=took) for took in (1000, 3000, 5000)]
    ended = [event(kind="exit", node="(exit)", name="nvidiactl", took_ns=7000)]
    (exit_use, open_use) = hw.uses(opened[:1], [*opened[1:], *ended])
    assert (open_use.queries, open_use.cuda, open_use.median_ns, open_use.max_ns) == (1, 2, 3000, 5000)
    assert (exit_use.kind, exit_use.queries, exit_use.cuda) == ("exit", 0, 1)


def test_the_table_has_a_line_a_row_in_columns() -> None:
    judgement = hw.judge([*QUERIES, uvm()], CUDA)
    lines = hw.table_lines(judgement)
    assert len(lines) == 1 + len(judgement.rows)
    assert any(re.search(r"0x90f1 VASPACE +0 +1 +compute +1\.0 +1\.0 +ok$", line) for line in lines)
    assert hw.verdict_lines(judgement)[-1] == "verdict: the classifier's table is WRONG"
    assert hw.verdict_lines(hw.judge(QUERIES, CUDA))[-1] == "verdict: the classifier's table is right"


# The tracer, on this kernel: /dev/null stands for nvidia3, /dev/zero for nvidia5.

PRETEND = {1: "nvidia"}
WORKLOAD = """
import ctypes, fcntl, mmap, os, signal, struct, threading
node = os.open("/dev/zero", os.O_RDWR)
def call(fd, request, argument):
    try:
        fcntl.ioctl(fd, request, argument)
    except OSError:
        pass
def compute(times):
    for _ in range(times):
        call(node, 0xC020462B, bytes(12) + struct.pack("<I", 0x90F1) + bytes(16))
threads = [threading.Thread(target=compute, args=(17,)) for _ in range(5)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
for _ in range(5):
    if os.fork() == 0:
        compute(3)
        os.execv("/bin/true", ["true"])
[os.wait() for _ in range(5)]
inner = ctypes.create_string_buffer(bytes(12) + struct.pack("<I", 0xC56F) + bytes(32))
call(node, 0xC01046D3, struct.pack("<IIQ", 0x2B, 48, ctypes.addressof(inner)))
for _ in range(23):
    os.close(os.open("/dev/zero", os.O_RDONLY))
mmap.mmap(node, 4096, mmap.MAP_PRIVATE).close()
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
[os.kill(os.getpid(), signal.SIGUSR1) for _ in range(7)]
os.access("/trace_ioctls/here", os.F_OK)
print(len(got), flush=True)
os._exit(41)
"""


def test_the_tracer_counts_a_known_workload_exactly() -> None:
    done = hw.trace([sys.executable, "-I", "-S", "-c", WORKLOAD], PRETEND)
    assert (done.status, done.stdout) == (41, "7\n")
    ours = [each for each in done.events if each.node == "nvidia5" or each.kind in ("mark", "exit")]
    counts = collections.Counter((each.kind, each.rm_class, each.wrapped) for each in ours)
    assert counts == {
        ("open", None, False): 24,
        ("ioctl", VASPACE, False): 5 * 17 + 5 * 3,
        ("ioctl", GPFIFO, True): 1,
        ("close", None, False): 23 + 1,  # Python maps through a duplicate
        ("mmap", None, False): 1,
        ("mark", None, False): 1,
        ("exit", None, False): 6,
    }
    assert all(each.took_ns > 0 and each.at_ns > 0 for each in ours)
    assert {each.result for each in ours if each.kind == "ioctl"} == {-25}
    assert {each.name for each in ours if each.kind == "open"} == {"/dev/zero"}
    (parent,) = (each for each in ours if each.kind == "exit" and "nvidia5" in each.name)
    assert len({each.tid for each in ours if each.kind == "ioctl"}) == 5 + 5 + 1
    assert parent.tid in {each.tid for each in ours if each.kind == "open"}


def test_a_program_that_kills_itself_is_seen_to_its_end() -> None:
    done = hw.trace([sys.executable, "-I", "-S", "-c", "import os; os.kill(os.getpid(), 9)"], PRETEND)
    assert done.status == -signal.SIGKILL


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(hw.CannotRunError, match="/nowhere/at-all: No such file"):
        hw.trace(["/nowhere/at-all"], PRETEND)


def test_past_its_time_the_traced_program_is_killed() -> None:
    before = signal.signal(signal.SIGALRM, hw._out_of_time)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        begin = time.monotonic()
        with pytest.raises(hw.OutOfTimeError):
            hw.trace(["/bin/sleep", "60"], PRETEND)
        assert time.monotonic() - begin < 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_text_is_read_up_to_the_end_of_memory() -> None:
    """A string may end where the next page is not mapped."""
    code = (
        "import ctypes, mmap, os\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.mmap.restype = ctypes.c_void_p\n"
        "at = libc.mmap(None, ctypes.c_size_t(8192), 3, 0x22, -1, ctypes.c_long(0))\n"
        "libc.munmap(ctypes.c_void_p(at + 4096), ctypes.c_size_t(4096))\n"
        "text = b'/trace_ioctls/edge\\0'\n"
        "ctypes.memmove(at + 4096 - len(text), text, len(text))\n"
        "libc.access(ctypes.c_void_p(at + 4096 - len(text)), 0)\n"
    )
    done = hw.trace([sys.executable, "-I", "-S", "-c", code], PRETEND)
    assert [each.name for each in done.events if each.kind == "mark"] == ["edge"]


def test_without_a_driver_it_says_what_lacks(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(hw, "majors_here", dict)
    assert hw.main(["--budget", "60"]) == 2
    assert "can't run here: /proc/devices has no nvidia; load the NVIDIA driver" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--sizes", "1,-2"], ["--sizes", "big"], ["--rounds", "-1"]])
def test_a_wrong_option_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        hw.parse(words)
    assert refused.value.code == 2


def test_why_it_cannot_run_is_in_the_json_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hw, "majors_here", dict)
    assert hw.main(["--json", str(tmp_path / "raw.json")]) == 2
    assert "no nvidia" in (tmp_path / "raw.json").read_text()
    assert hw.main(["--json", str(tmp_path / "nowhere/raw.json")]) == 2
