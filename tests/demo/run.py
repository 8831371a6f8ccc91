# SPDX-License-Identifier: Apache-2.0
"""`make demo`: boot one guest, have one hand-back in it, live, and leave the report in build/demo/."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.vm.console import describe
from tests.vm.guests import GUESTS, find_guest
from tests.vm.host import REPO, HarnessError, say
from tests.vm.run import LOST_STATUS, boot, run_dir

#: One emulated hand-back takes seconds; a guest that needs longer than this is not going to finish.
LIMIT_S = 420.0
MEMORY_MIB = 4096
MAX_GPUS = 16


def parse() -> argparse.Namespace:
    """Read and check the command line; a wrong value ends the program with status 2 and names the option."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", "--kernel", default="6.12", choices=list(GUESTS))
    parser.add_argument("--owners", type=int, default=1, help="owners that return at once")
    parser.add_argument("--gpus", type=int, default=2, help="GPUs of the node, shared out among the owners")
    options = parser.parse_args()
    if not 1 <= options.gpus <= MAX_GPUS:
        parser.error(f"--gpus (GPUS={options.gpus}): the simulated node has 1 to {MAX_GPUS} GPUs")
    if not 1 <= options.owners <= options.gpus:
        parser.error(f"--owners (OWNERS={options.owners}): each owner needs a GPU; 1 to GPUS={options.gpus}")
    return options


def main() -> int:
    """Exit status: 0 when every owner's client finished with the right answer, else what went wrong."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    job = ["python3", "tests/demo/guest.py", "--owners", str(options.owners), "--gpus", str(options.gpus)]
    out = run_dir("demo")
    try:
        result = boot(find_guest(options.kernel), job, timeout_s=LIMIT_S, out_dir=out, memory_mib=MEMORY_MIB)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return LOST_STATUS
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if result.faults:
        print(f"the kernel complained:\n{describe(result.faults)}", file=sys.stderr)
        return 1
    if result.status:
        print(f"error: the demo failed in the guest; files: {out}", file=sys.stderr)
        return result.status
    report = REPO / "build" / "demo"
    report.mkdir(parents=True, exist_ok=True)
    for name in ("handback.html", "traces.jsonl", "agent.log"):
        shutil.copy(result.results_dir / name, report / name)
    say(f"report: {report / 'handback.html'}   traces: {report / 'traces.jsonl'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
