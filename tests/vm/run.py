# SPDX-License-Identifier: Apache-2.0
"""Boot one guest, run one command in it, bring back its output, its files and its exit status.

`python tests/vm/run.py -k 6.12 -- uname -a`; `python tests/vm/run.py -k 6.1 --shell`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.vm.build import VARIANTS, build_all
from tests.vm.console import Fault, describe, scan
from tests.vm.guests import GUESTS, Guest, find_guest
from tests.vm.host import REPO, CommandFailedError, HarnessError, check_tools, run, say
from tests.vm.image import build_image
from tests.vm.jobdisk import make_job_disk
from tests.vm.life import Ended, Life
from tests.vm.pysite import build_site
from tests.vm.qemu import Machine, command_line, host_accelerator
from tests.vm.slots import slot

LOST_STATUS = 75
FAULT_STATUS = 76
# The guest ends a late job itself, this long before the host would kill it, so that its files still come
# back.
SOFT_MARGIN_S = 15.0
SOFT_LEAST_S = 45.0
_SHELL_LIMIT_S = 86400.0


class LostGuest(HarnessError):  # noqa: N818 - a guest is lost, which is not an error of the harness
    """The guest panicked, hung, fell silent or exceeded its limit: nothing is known of the job's outcome.

    `console_path` is the kernel console, `results_dir` what came back before it was lost, `faults` what the
    console shows.
    """

    def __init__(self, reason: str, console_path: Path, results_dir: Path, faults: Sequence[Fault]) -> None:
        shown = describe(faults) or _tail(console_path)
        super().__init__(f"guest lost: {reason}\nconsole: {console_path}\n{shown}")
        self.reason = reason
        self.console_path = console_path
        self.results_dir = results_dir
        self.faults = tuple(faults)


@dataclass(frozen=True)
class Result:
    """How a job ended: its exit status, the kernel console, its files, and what the console must not show."""

    status: int
    console_path: Path
    results_dir: Path
    faults: tuple[Fault, ...]


def boot(
    guest: Guest,
    job: Sequence[str] | str,
    *,
    timeout_s: float,
    out_dir: Path,
    memory_mib: int = 3072,
    cpus: int = 2,
    icount: bool = False,
    env: Mapping[str, str] | None = None,
    interactive: bool = False,
    extra_files: Mapping[str, Path] | None = None,
    stream: bool = True,
    allow: Sequence[str] = (),
    variants: Sequence[str] = tuple(VARIANTS),
    on_event: Callable[[str], None] | None = None,
    stop: Callable[[], str | None] | None = None,
) -> Result:
    """Boot `guest`, run `job` in it at /src, and return how it ended.

    `job` is a command, or a bash script as one text. `timeout_s` covers the guest's whole life, from QEMU's
    start; making images and modules is not counted. `out_dir` receives console.log, job.log, qemu.log and
    results/. `allow` are regular expressions for console lines that the job announces; the job may add to
    them, one a line, in the file $RESULTS/allow-console. `variants` are the builds to take along. `on_event`
    and `stop` are `Life`'s; the job writes events to the device $SPOTGPU_EVENTS. Raises LostGuest, or
    HarnessError when no guest can be started.
    """
    check_tools()
    image = build_image(guest)
    site = build_site(image)
    builds = build_all(image, variants)
    accelerator = host_accelerator()
    machine = Machine(memory_mib, 1 if icount else cpus, icount, interactive, accelerator)
    environment = {"SPOTGPU_GUEST": guest.key, **(env or {}), **_limits(timeout_s, icount, interactive)}
    out_dir = out_dir.resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / "console.log").touch()
    with ExitStack() as held:
        scratch = held.enter_context(tempfile.TemporaryDirectory(prefix="boot-", dir=out_dir))
        if not interactive:
            held.enter_context(slot(stop=stop))
        disk = make_job_disk(image, builds, job, environment, extra_files or {}, Path(scratch))
        say(f"guest {guest.key}: boots {image.release} ({accelerator}{', icount' if icount else ''})")
        life = Life(
            guest.key,
            out_dir,
            timeout_s=timeout_s,
            beats=not (icount or interactive),
            stream=stream,
            interactive=interactive,
            on_event=on_event,
            stop=stop,
        )
        held.enter_context(_terminal_kept(interactive))
        ended = life.watch(command_line(image, site, disk, machine, out_dir))
    return _conclude(ended, out_dir, allow)


def _conclude(ended: Ended, out_dir: Path, allow: Sequence[str]) -> Result:
    results = _unpack_results(out_dir)
    console = out_dir / "console.log"
    announced = results / "allow-console"
    allowed = [*allow, *(announced.read_text().splitlines() if announced.exists() else [])]
    faults = scan(console.read_text(errors="replace"), allowed)
    if ended.lost or ended.status is None:
        raise LostGuest(ended.lost or "it said nothing of its job", console, results, faults)
    return Result(ended.status, console, results, tuple(faults))


def _unpack_results(out_dir: Path) -> Path:
    """Unpack what the guest sent; of an archive cut short, what is whole is kept."""
    results = out_dir / "results"
    results.mkdir(exist_ok=True)
    archive = out_dir / "results.tar"
    if archive.exists() and archive.stat().st_size:
        try:
            run(["tar", "-xf", archive, "-C", results, "--no-same-owner"])
        except CommandFailedError as error:
            say(f"results are incomplete: {error}")
    archive.unlink(missing_ok=True)
    return results


@contextmanager
def _terminal_kept(interactive: bool) -> Iterator[None]:
    """Give the terminal back as it was: QEMU sets it raw and may be killed."""
    if not interactive or not sys.stdin.isatty():
        yield
        return
    saved = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)


def _limits(timeout_s: float, icount: bool, interactive: bool) -> dict[str, str]:
    """Return the limits that the guest keeps itself; none where its time is virtual or a human's."""
    if interactive:
        size = shutil.get_terminal_size()
        terminal = f"rows {size.lines} cols {size.columns}"
        return {"VM_BEAT": "0", "VM_TERMINAL": terminal, "TERM": os.environ.get("TERM", "vt100")}
    if icount:
        return {"VM_BEAT": "0"}
    soft = timeout_s - SOFT_MARGIN_S
    return {"VM_SOFT_LIMIT_S": str(int(soft))} if soft >= SOFT_LEAST_S else {}


def _tail(path: Path, lines: int = 25) -> str:
    return "\n".join(f"    | {line}" for line in path.read_text(errors="replace").splitlines()[-lines:])


_run_numbers = itertools.count(1)


def run_dir(key: str) -> Path:
    """Return a new place for the files of one run."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_run_numbers)}"
    return REPO / "build/vm" / key / name


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("-k", "--kernel", required=True, choices=list(GUESTS))
    add("--timeout", type=float, default=600.0, metavar="S", help="limit of the guest's whole life, seconds")
    add("--icount", action="store_true", help="count instructions: one vCPU, virtual time")
    add("--mem", type=int, default=3072, metavar="MIB")
    add("--cpus", type=int, default=2)
    add("--env", action="append", default=[], metavar="NAME=VALUE")
    add("--out", type=Path, metavar="DIR", help="default: build/vm/<kernel>/<run>")
    add("--allow", action="append", default=[], metavar="REGEX", help="a console line to expect")
    add("--build", nargs="*", choices=list(VARIANTS), default=list(VARIANTS), help="default: everything")
    add("--shell", action="store_true", help="an interactive guest; the command, if any, runs first")
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    options = parser.parse_args()
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not options.command and not options.shell:
        parser.error("give a command after --, or --shell")
    return options


def _boot_with(options: argparse.Namespace) -> Result:
    return boot(
        find_guest(options.kernel),
        options.command or "true",
        timeout_s=_SHELL_LIMIT_S if options.shell else options.timeout,
        out_dir=options.out or run_dir(options.kernel),
        memory_mib=options.mem,
        cpus=options.cpus,
        icount=options.icount,
        env=dict(pair.split("=", 1) for pair in options.env),
        interactive=options.shell,
        allow=options.allow,
        variants=options.build,
    )


def main() -> int:
    """Command line. Status: the job's; 75 lost; 76 a fault on the console; 2 the harness cannot work."""
    options = _options()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        result = _boot_with(options)
    except LostGuest as error:
        print(f"lost: {error}", file=sys.stderr)
        return LOST_STATUS
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    say(f"status {result.status}; files in {result.results_dir.parent}")
    if result.faults:
        print(f"console faults ({len(result.faults)}):\n{describe(result.faults)}", file=sys.stderr)
        return result.status or FAULT_STATUS
    return result.status


if __name__ == "__main__":
    sys.exit(main())
