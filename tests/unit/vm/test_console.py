# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.vm.console import CONTEXT_AFTER, CONTEXT_BEFORE, describe, scan

FAULTS = [
    "[    1.0] WARNING: CPU: 0 PID: 12 at kernel/foo.c:10 foo+0x1/0x2 [khook]",
    "[    1.0] WARNING: kernel/foo.c:10 at foo+0x1/0x2 [khook], CPU#1: bar/12",
    "[    1.0] WARNING: possible circular locking dependency detected",
    "[    1.0] BUG: kernel NULL pointer dereference, address: 0000000000000000",
    "[    1.0] BUG: unable to handle page fault for address: ffff888000000000",
    "[    1.0] BUG: sleeping function called from invalid context at mm/slab.h:1",
    "[    1.0] kernel BUG at lib/list_debug.c:29!",
    "[    1.0] BUG kmalloc-64 (Tainted: G OE): Poison overwritten",
    "[    1.0] watchdog: BUG: soft lockup - CPU#0 stuck for 61s! [python3:12]",
    "[    1.0] Oops: 0000 [#1] PREEMPT SMP NOPTI",
    "[    1.0] Oops: general protection fault, probably for non-canonical address: 0000 [#1] SMP",
    "[    1.0] Kernel panic - not syncing: Fatal exception",
    "[    1.0] INFO: task python3:12 blocked for more than 120 seconds.",
    "[    1.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
    "[    1.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
    "[    1.0] list_add corruption. prev->next should be next",
    "[    1.0] list_del corruption, ffff888 is LIST_POISON1",
    "[    1.0] refcount_t: underflow; use-after-free.",
    "[    1.0] BUG: KASAN: slab-use-after-free in foo+0x1/0x2",
    "[    1.0] UBSAN: array-index-out-of-bounds in foo.c:1:2",
    "[    1.0] BUG: Bad page state in process python3  pfn:1",
    "[    1.0] Out of memory: Killed process 12 (python3)",
    "[    1.0] unregister_netdevice: waiting for lo to become free. Usage count = 2",
]
HARMLESS = [
    "[    1.0] khook: loading out-of-tree module taints kernel.",
    "[    1.0] khook: module verification failed: signature and/or required key missing - tainting kernel",
    "[    1.0] Memory cgroup out of memory: Killed process 12 (python3)",
    "[    1.0] mtrr: your CPUs had inconsistent fixed MTRR settings",
    "[    1.0] clocksource: Watchdog remote CPU 1 read timed out",
    "[    1.0] workqueue: foo hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
    "[    1.0] amd_pstate: the _CPC object is not present in SBIOS or ACPI disabled",
    "[    1.0] sysrq: Show Blocked State",
    "[    1.0] debugfs: something warns of a debug build",
    "[    1.0] reboot: Power down",
]


@pytest.mark.parametrize("line", FAULTS)
def test_a_fault_is_found(line: str) -> None:
    (fault,) = scan(f"[    0.9] before\n{line}\n[    1.1] after\n")
    assert (fault.line_number, fault.headline) == (2, line)


@pytest.mark.parametrize("line", HARMLESS)
def test_an_ordinary_line_is_no_fault(line: str) -> None:
    assert scan(line) == []


def test_a_warning_and_its_trace_are_one_fault_with_context() -> None:
    report = [
        "[ 1.0] ------------[ cut here ]------------",
        FAULTS[0],
        "[ 1.0] Oops:  inside",
        "[ 1.0] Call Trace:",
    ]
    end = "[ 1.0] ---[ end trace 0000000000000000 ]---"
    (fault,) = scan("\n".join(["[ 0.9] quiet", *report, end, "[ 2.0] later"]))
    assert fault.context.splitlines() == ["[ 0.9] quiet", *report, end]


def test_two_reports_are_two_faults() -> None:
    text = f"{FAULTS[0]}\n[ 1.0] ---[ end trace 0 ]---\n{FAULTS[3]}\n"
    assert [fault.headline for fault in scan(text)] == [FAULTS[0], FAULTS[3]]


def test_faults_without_an_end_mark_are_counted_one_by_one() -> None:
    text = f"{FAULTS[12]}\n[ 1.0]  task:python3\n{FAULTS[13]}\n"
    assert [fault.line_number for fault in scan(text)] == [1, 3]


def test_context_is_bounded() -> None:
    text = "\n".join([*["before"] * 50, FAULTS[3], *["after"] * 500])
    (fault,) = scan(text)
    assert len(fault.context.splitlines()) == CONTEXT_BEFORE + CONTEXT_AFTER


def test_an_announced_report_is_no_fault_and_hides_no_other() -> None:
    text = f"{FAULTS[0]}\n[ 1.0] Call Trace:\n[ 1.0] ---[ end trace 0 ]---\n{FAULTS[3]}\n"
    assert [fault.headline for fault in scan(text, allow=[r"at kernel/foo\.c:10"])] == [FAULTS[3]]


def test_describe_shows_place_and_context() -> None:
    text = describe(scan(f"quiet\n{FAULTS[3]}\n"))
    assert text.splitlines() == [f"console line 2: {FAULTS[3]}", "    | quiet", f"    | {FAULTS[3]}"]
