# SPDX-License-Identifier: Apache-2.0
"""Find in a guest's kernel console what must fail a run. Pure: text in, faults out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

CONTEXT_BEFORE = 3
CONTEXT_AFTER = 30

# Each alternative is the fixed text of a kernel message. `panic_on_warn` would stop at the first and hide the
# rest.
_FAULT = re.compile(
    r"""
      \bWARNING:\ (?!\ )            # WARN(), RCU and lockdep reports
    | \bBUG:\ | \bkernel\ BUG\ at\ | \bBUG\ [\w-]+\ .*:\ \w   # the last is the slab checker's
    | \bOops:\ | \b[Gg]eneral\ protection\ fault | \bdouble\ fault:\ | \binvalid\ opcode:\ | \bdivide\ error:\
    | \b[Uu]nable\ to\ handle\ (kernel\ |page\ )
    | \bKernel\ panic\b
    | \bINFO:\ task\ .*\ blocked\ for\ more\ than
    | \bINFO:\ rcu\w*.*\ (detected|stall) | \brcu_\w+\ kthread\ starved
    | \bINFO:\ (possible|inconsistent|trying\ to\ register)
    | \blist_(add|del)(_\w+)?\ corruption
    | \brefcount_t:\ | \bpercpu\ ref\b.*(<=|underflow)
    | \bKASAN:\ | \bUBSAN:\ | \bKCSAN:\ | \bKFENCE:\ | \bkmemleak:\ .*new\ suspected
    | \bpossible\ (circular|recursive)\ locking | \binconsistent\ lock\ state | \bsuspicious\ RCU\ usage
    | \bheld\ lock\ freed | \block\ held\ when\ returning | \bbad\ unlock\ balance
    | \bscheduling\ while\ atomic | \bsleeping\ function\ called\ from\ invalid
    | \bBad\ page\ (state|map) | \bBad\ rss-counter
    | (?<!cgroup\ )\bOut\ of\ memory:\ | \bpage\ allocation\ failure
    | \bunregister_netdevice:\ waiting
    | \bsysfs:\ cannot\ create\ duplicate
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Fault:
    """A line of the console that fails the run (`line_number` from 1) and the lines around it."""

    line_number: int
    headline: str
    context: str


def scan(console: str, allow: Sequence[str] = ()) -> list[Fault]:
    """Return the faults in `console`.

    A line that matches one of the regular expressions in `allow` is expected: it and the report that follows
    it are no fault. Lines of one report (a WARNING and its trace) make one fault.
    """
    expected = [re.compile(pattern) for pattern in allow]
    lines = console.splitlines()
    faults: list[Fault] = []
    covered = -1
    for index, line in enumerate(lines):
        if index <= covered or not _FAULT.search(line):
            continue
        end = _report_end(lines, index)
        covered = end - 1
        if any(pattern.search(line) for pattern in expected):
            continue
        context = "\n".join(lines[max(0, index - CONTEXT_BEFORE) : end])
        faults.append(Fault(index + 1, line.strip(), context))
    return faults


def _report_end(lines: Sequence[str], begin: int) -> int:
    """Return the index after the report that starts at `begin`: its end mark, or so many lines."""
    limit = min(len(lines), begin + CONTEXT_AFTER)
    for index in range(begin + 1, limit):
        if "---[ end trace" in lines[index] or "---[ end Kernel panic" in lines[index]:
            return index + 1
        if "[ cut here ]" in lines[index]:
            return index
    # Without an end mark, the next fault line is a report of its own.
    for index in range(begin + 1, limit):
        if _FAULT.search(lines[index]):
            return index
    return limit


def describe(faults: Sequence[Fault]) -> str:
    """Return the faults with their context, for a human."""
    parts = []
    for fault in faults:
        parts.append(f"console line {fault.line_number}: {fault.headline}")
        parts += [f"    | {line}" for line in fault.context.splitlines()]
    return "\n".join(parts)
