# SPDX-License-Identifier: Apache-2.0
"""Boot one guest, run one command in it, bring back its output, its files and its exit status.

`python tests/vm/run.py -k 6.12 -- uname -a`; `python tests/vm/run.py -k 6.1 --shell`.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.vm.build import VARIANTS, build_all
from tests.vm.console import Fault, describe, scan
from tests.vm.guests import GUESTS, Guest, find_guest
from tests.vm.host import REPO, CommandFailedError, HarnessError, check_tools, run, say, search_path
from tests.vm.image import build_image
from tests.vm.jobdisk import make_job_disk
from tests.vm.pysite import build_site
from tests.vm.qemu import Machine, command_line, host_accelerator

LOST_STATUS = 75
FAULT_STATUS = 76
BOOT_LIMIT_S = 180.0
# The guest beats every 5 s; a guest silent for this long no longer schedules processes.
SILENCE_LIMIT_S = 120.0
# The guest ends a late job itself, this long before the host would kill it, so that its files still come
# back.
SOFT_MARGIN_S = 15.0
SOFT_LEAST_S = 45.0
_POLL_S = 0.1


class LostGuestError(HarnessError):
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


LostGuest = LostGuestError


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
) -> Result:
    """Boot `guest`, run `job` in it at /src, and return how it ended.

    `job` is a command, or a bash script as one text. `timeout_s` covers the guest's whole life, from QEMU's
    start; making images and modules is not counted. `out_dir` receives console.log, job.log, qemu.log and
    results/. `allow` are regular expressions for console lines that the job announces; the job may add to
    them, one a line, in the file $RESULTS/allow-console. `variants` are the builds to take along. Raises
    LostGuestError, or HarnessError when no guest could be started.
    """
    check_tools()
    image = build_image(guest)
    site = build_site(image)
    builds = build_all(image, variants)
    accelerator = host_accelerator()
    machine = Machine(memory_mib, 1 if icount else cpus, icount, interactive, accelerator)
    environment = {"SPOTGPU_GUEST": guest.key, **(env or {}), **_limits(timeout_s, icount, interactive)}
    out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="boot-", dir=out_dir) as name:
        scratch = Path(name)
        disk = make_job_disk(image, builds, job, environment, extra_files or {}, scratch)
        say(f"guest {guest.key}: boots {image.release} ({accelerator}{', icount' if icount else ''})")
        life = _Life(guest, timeout_s, out_dir, scratch, stream and not interactive, icount or interactive)
        arguments = command_line(image, site, disk, machine, scratch)
        with _keep(scratch / "console.log", out_dir), _terminal(interactive):
            ended = life.watch(arguments)
    return _conclude(ended, out_dir, allow)


@dataclass(frozen=True)
class _Ended:
    """What the host saw of a guest's life; `lost` is why it is lost, `status` what the guest said last."""

    status: int | None
    lost: str | None


class _Life:
    """One QEMU process from start to end."""

    def __init__(
        self, guest: Guest, timeout_s: float, out_dir: Path, scratch: Path, stream: bool, no_beat: bool
    ) -> None:
        self._guest = guest
        self._timeout_s = timeout_s
        self._out_dir = out_dir
        self._scratch = scratch
        self._stream = stream
        self._no_beat = no_beat
        self._told = 0
        self._job_began = False
        self._status: int | None = None
        self._late: str | None = None

    def watch(self, arguments: Sequence[str]) -> _Ended:
        """Start QEMU and stay with it until it ends or must be ended; never longer than the limit."""
        # setpriv makes the kernel kill QEMU when this process dies, however it dies.
        guarded = ["setpriv", "--pdeathsig", "KILL", "--", *arguments]
        environment = {**os.environ, "PATH": search_path()}
        interactive = "terminal" in " ".join(arguments)
        with (
            (self._out_dir / "qemu.log").open("wb") as errors,
            (self._out_dir / "job.log").open("wb") as job_log,
        ):
            process = subprocess.Popen(
                guarded,
                # Never written, but open: at end of file QEMU would call the job's port closed, and writers
                # would block.
                stdin=None if interactive else subprocess.PIPE,
                stdout=None if interactive else subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
            try:
                lost = self._follow(process, job_log)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
                if process.stdout:
                    self._drain(process.stdout, job_log)
                    process.stdout.close()
                if process.stdin:
                    process.stdin.close()
        self._read_control()
        if lost is None and self._status is None:
            lost = self._late or self._death(process.returncode)
        return _Ended(self._status, lost or self._late)

    def _follow(self, process: subprocess.Popen[bytes], job_log: BinaryIO) -> str | None:
        began = last_sign = time.monotonic()
        with selectors.DefaultSelector() as selector:
            if process.stdout:
                os.set_blocking(process.stdout.fileno(), False)
                selector.register(process.stdout, selectors.EVENT_READ)
            while process.poll() is None:
                selector.select(_POLL_S) if selector.get_map() else time.sleep(_POLL_S)
                heard = bool(process.stdout) and self._drain(process.stdout, job_log)
                heard = self._read_control() or heard
                now = time.monotonic()
                last_sign = now if heard else last_sign
                reason = self._overdue(now - began, now - last_sign)
                if reason:
                    return reason
        return None

    def _overdue(self, age_s: float, silent_s: float) -> str | None:
        if age_s > self._timeout_s:
            return f"exceeded its limit of {self._timeout_s:.0f} s"
        if not self._job_began and age_s > BOOT_LIMIT_S:
            return f"did not boot within {BOOT_LIMIT_S:.0f} s"
        if self._job_began and not self._no_beat and silent_s > SILENCE_LIMIT_S:
            return f"silent for {SILENCE_LIMIT_S:.0f} s"
        return None

    def _drain(self, source: object, job_log: BinaryIO) -> bool:
        assert hasattr(source, "fileno")
        heard = False
        while True:
            try:
                data = os.read(source.fileno(), 65536)
            except BlockingIOError:
                return heard
            if not data:
                return heard
            heard = True
            job_log.write(data)
            job_log.flush()
            if self._stream:
                sys.stdout.buffer.write(data)
                sys.stdout.flush()

    def _read_control(self) -> bool:
        """Take in what the guest has told its control port since the last call; True if it told anything."""
        path = self._scratch / "control.log"
        if not path.exists():
            return False
        text = path.read_text(errors="replace")
        whole = text[: text.rfind("\n") + 1]
        fresh, self._told = whole[self._told :], len(whole)
        for line in fresh.splitlines():
            word, _, value = line.partition(" ")
            if word == "job":
                self._job_began = True
                say(f"guest {self._guest.key}: job begins {value} s after the kernel")
            elif word == "late":
                self._late = (
                    f"exceeded its limit of {self._timeout_s:.0f} s (job ended by the guest at {value} s)"
                )
            elif word == "exit":
                self._status = int(value)
        return bool(fresh)

    def _death(self, returncode: int) -> str:
        if returncode:
            errors = (self._out_dir / "qemu.log").read_text(errors="replace").strip()
            return f"QEMU ended with status {returncode}: {errors[-500:]}"
        return "kernel panic or reset" if self._job_began else "kernel panic or reset before the job began"


def _conclude(ended: _Ended, out_dir: Path, allow: Sequence[str]) -> Result:
    results = _unpack_results(out_dir)
    console = out_dir / "console.log"
    announced = results / "allow-console"
    allowed = [*allow, *(announced.read_text().splitlines() if announced.exists() else [])]
    faults = scan(console.read_text(errors="replace"), allowed)
    if ended.lost or ended.status is None:
        raise LostGuestError(ended.lost or "said nothing", console, results, faults)
    return Result(ended.status, console, results, tuple(faults))


def _unpack_results(out_dir: Path) -> Path:
    """Unpack what the guest sent; of an archive cut short, what is whole is kept."""
    results = out_dir / "results"
    results.mkdir(exist_ok=True)
    archive = out_dir / "results.tar"
    if archive.exists():
        try:
            run(["tar", "-xf", archive, "-C", results, "--no-same-owner"])
        except CommandFailedError as error:
            say(f"results are incomplete: {error}")
        archive.unlink()
    return results


@contextmanager
def _keep(console: Path, out_dir: Path) -> Iterator[None]:
    """Move console and results out of the scratch folder, whatever happened."""
    try:
        yield
    finally:
        for name in ("console.log", "results.tar", "control.log"):
            source = console.with_name(name)
            if source.exists():
                source.replace(out_dir / name)
        (out_dir / "console.log").touch()


@contextmanager
def _terminal(interactive: bool) -> Iterator[None]:
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
        return {"VM_BEAT": "0", "VM_INTERACTIVE": "1"}
    if icount:
        return {"VM_BEAT": "0"}
    soft = timeout_s - SOFT_MARGIN_S
    return {"VM_SOFT_LIMIT_S": str(int(soft))} if soft >= SOFT_LEAST_S else {}


def _tail(path: Path, lines: int = 25) -> str:
    return "\n".join(f"    | {line}" for line in path.read_text(errors="replace").splitlines()[-lines:])


def run_dir(key: str) -> Path:
    """Return a new place for the files of one run."""
    return REPO / "build/vm" / key / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Command line. Status: the job's; 75 lost; 76 a fault on the console; 2 the harness cannot work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", "--kernel", required=True, choices=list(GUESTS))
    parser.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="the guest's whole life, seconds"
    )
    parser.add_argument("--icount", action="store_true", help="count instructions: one vCPU, virtual time")
    parser.add_argument("--mem", type=int, default=3072, metavar="MIB")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: build/vm/<kernel>/<run>")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="REGEX", help="console lines to expect"
    )
    parser.add_argument(
        "--build", nargs="*", choices=list(VARIANTS), help="what to build; default: everything"
    )
    parser.add_argument("--shell", action="store_true", help="an interactive guest; the command runs first")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command and not options.shell:
        parser.error("give a command after --, or --shell")
    signal.signal(signal.SIGTERM, _terminate)
    try:
        result = boot(
            find_guest(options.kernel),
            command or "true",
            timeout_s=86400 if options.shell else options.timeout,
            out_dir=options.out or run_dir(options.kernel),
            memory_mib=options.mem,
            cpus=options.cpus,
            icount=options.icount,
            env=dict(pair.split("=", 1) for pair in options.env),
            interactive=options.shell,
            allow=options.allow,
            variants=options.build if options.build is not None else tuple(VARIANTS),
        )
    except LostGuestError as error:
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
