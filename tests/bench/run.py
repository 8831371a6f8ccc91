# SPDX-License-Identifier: Apache-2.0
"""`make bench`: measure in guests, print the figures, write build/bench.json; `--only P1`: one group."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench.figures import PROCESSES, Row, merge, ratios, row, table
from tests.bench.python_loop import loop_ns
from tests.vm.console import describe
from tests.vm.guests import GUESTS, Guest, find_guest
from tests.vm.host import REPO, HarnessError, say
from tests.vm.run import LOST_STATUS, boot, run_dir

ROUNDS = 5
HANDBACK_LIMIT_S = 3600.0
IOCTL_LIMIT_S = 900.0
#: 64 processes with a context each, and containers' roots in memory.
MEMORY_MIB = 6144


def in_guest(
    guest: Guest, job: Sequence[str], limit_s: float, *, icount: bool = False
) -> Mapping[str, object]:
    """Run a measuring job, which writes its samples to the path put in place of `OUT`; return them.

    Raises HarnessError when the guest was lost, the job failed or the kernel complained: a figure from such a
    run is none.
    """
    argv = [word.replace("OUT", "/results/samples.json") for word in job]
    result = boot(
        guest, argv, timeout_s=limit_s, out_dir=run_dir("bench"), memory_mib=MEMORY_MIB, icount=icount
    )
    if result.faults:
        raise HarnessError(f"the kernel complained:\n{describe(result.faults)}")
    if result.status:
        raise HarnessError(
            f"{' '.join(job)}: exit status {result.status}; files: {result.results_dir.parent}"
        )
    samples: Mapping[str, object] = json.loads((result.results_dir / "samples.json").read_text())
    return samples


def handback_rows(found: Mapping[str, object]) -> list[Row]:
    """Rows of P1 from what guest_handback.py wrote."""
    series, slowdown = found["samples"], found["slowdown"]
    assert isinstance(series, dict)
    assert isinstance(slowdown, float)
    rows = [
        row(f"{figure}.{count}", ratios(series[str(count)][mode], series[str(count)]["floor"]))
        for figure, mode in (("P1", "proof"), ("P1e", "empty"), ("P1n", "notify"))
        for count in PROCESSES
    ]
    rows += [
        row(f"P1.{name}", ratios(series[name]["proof"], series[name]["floor"])) for name in ("raw100", "raw0")
    ]
    return [*rows, row("P1.slowdown", [slowdown])]


def ioctl_rows(found: Mapping[str, object]) -> list[Row]:
    """Rows of P4 from what guest_ioctl.py wrote."""
    none, armed, disarmed = found["none"], found["armed"], found["disarmed"]
    assert isinstance(none, dict)
    assert isinstance(armed, dict)
    assert isinstance(disarmed, dict)
    added = [a - n for a, n in zip(armed["query"], none["query"], strict=True)]
    return [
        row("P4.armed", ratios(armed["query"], none["query"])),
        row("P4.disarmed", ratios(disarmed["query"], none["query"])),
        row("P4.count", ratios(armed["count"], none["count"])),
        row("P4.instructions", added),
    ]


def measure_handback(guest: Guest) -> list[Row]:
    """P1."""
    job = ["python3", "tests/bench/guest_handback.py", "OUT", "--rounds", str(ROUNDS)]
    return handback_rows(in_guest(guest, [*job, "--host-loop-ns", str(loop_ns())], HANDBACK_LIMIT_S))


def measure_ioctl(guest: Guest) -> list[Row]:
    """P4."""
    return ioctl_rows(
        in_guest(guest, ["python3", "tests/bench/guest_ioctl.py", "OUT"], IOCTL_LIMIT_S, icount=True)
    )


GROUPS: Mapping[str, Callable[[Guest], list[Row]]] = {"P1": measure_handback, "P4": measure_ioctl}


def main() -> int:
    """Exit status: 0 when everything was measured; a missed goal is printed as such, not hidden."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", "--kernel", default="6.12", choices=list(GUESTS))
    parser.add_argument("--only", choices=list(GROUPS), help="one group of figures")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    guest = find_guest(options.kernel)
    rows: list[Row] = []
    try:
        for name in [options.only] if options.only else list(GROUPS):
            rows += GROUPS[name](guest)
            merge(REPO / "build" / "bench.json", rows)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return LOST_STATUS
    print(table(rows))
    missed = [r.id for r in rows if r.holds is False]
    say(f"build/bench.json: {len(rows)} figures" + (f"; goals missed: {', '.join(missed)}" if missed else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
