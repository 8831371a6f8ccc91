# SPDX-License-Identifier: Apache-2.0
"""One QEMU process from its start to its end, never longer than its limit, never longer than we live."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from tests.vm.host import say, search_path

BOOT_LIMIT_S = 180.0
# The guest beats every 5 s; a guest silent for this long no longer schedules processes.
SILENCE_LIMIT_S = 120.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Ended:
    """What the host saw of a guest's life; `lost` is why it is lost, `status` what the guest said last."""

    status: int | None
    lost: str | None


class Tail:
    """A file that grows: `lines()` gives the whole lines added since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[str]:
        """Return the new whole lines; none while the file does not exist."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as source:
            source.seek(self._offset)
            data = source.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()


class Life:
    """Runs QEMU and listens to it.

    Parameters: `key` names the guest in messages; `timeout_s` is the limit from QEMU's start; `beats` says
    that the guest gives a sign of life every 5 s; `stream` copies the job's output to stdout; `interactive`
    gives QEMU this terminal; `on_event` is called with each line of the events port; `stop` is asked ten
    times a second and ends the guest by returning why.
    """

    def __init__(
        self,
        key: str,
        out_dir: Path,
        *,
        timeout_s: float,
        beats: bool,
        stream: bool,
        interactive: bool,
        on_event: Callable[[str], None] | None = None,
        stop: Callable[[], str | None] | None = None,
    ) -> None:
        self._key = key
        self._out_dir = out_dir
        self._timeout_s = timeout_s
        self._beats = beats
        self._stream = stream
        self._interactive = interactive
        self._on_event = on_event
        self._stop = stop
        self._control = Tail(out_dir / "control.log")
        self._events = Tail(out_dir / "events.log")
        self._job_began = False
        self._status: int | None = None
        self._late: str | None = None

    def watch(self, arguments: Sequence[str]) -> Ended:
        """Start QEMU with `arguments` and stay with it until it ends or must be ended."""
        errors_path = self._out_dir / "qemu.log"
        with errors_path.open("wb") as errors, (self._out_dir / "job.log").open("wb") as job_log:
            process = self._start(arguments, errors)
            try:
                lost = self._follow(process, job_log)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
                if process.stdin and process.stdout:
                    self._drain(process.stdout, job_log)
                    process.stdout.close()
                    process.stdin.close()
        self._listen()
        if lost is None and self._status is None:
            lost = self._late or self._death(process.returncode, errors_path)
        return Ended(self._status, lost or self._late)

    def _start(self, arguments: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        # setpriv makes the kernel kill QEMU when this process dies, however it dies. The job's stdin is never
        # written, but stays open: at its end QEMU would call the job's port closed, and the guest's writers
        # would block.
        pipe = None if self._interactive else subprocess.PIPE
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            env={**os.environ, "PATH": search_path()},
        )
        if process.stdout:
            os.set_blocking(process.stdout.fileno(), False)
        return process

    def _follow(self, process: subprocess.Popen[bytes], job_log: BinaryIO) -> str | None:
        began = last_sign = time.monotonic()
        with selectors.DefaultSelector() as selector:
            if process.stdout:
                selector.register(process.stdout, selectors.EVENT_READ)
            while process.poll() is None:
                if process.stdout:
                    selector.select(_POLL_S)
                else:
                    time.sleep(_POLL_S)
                heard = bool(process.stdout) and self._drain(process.stdout, job_log)
                heard = self._listen() or heard
                now = time.monotonic()
                last_sign = now if heard else last_sign
                reason = self._overdue(now - began, now - last_sign) or (self._stop and self._stop())
                if reason:
                    return reason
        return None

    def _overdue(self, age_s: float, silent_s: float) -> str | None:
        if age_s > self._timeout_s:
            return f"exceeded its limit of {self._timeout_s:.0f} s"
        if not self._job_began and age_s > BOOT_LIMIT_S:
            return f"did not boot within {BOOT_LIMIT_S:.0f} s"
        if self._job_began and self._beats and silent_s > SILENCE_LIMIT_S:
            return f"silent for {SILENCE_LIMIT_S:.0f} s"
        return None

    def _drain(self, source: IO[bytes] | None, job_log: BinaryIO) -> bool:
        heard = False
        while source:
            try:
                data = os.read(source.fileno(), 65536)
            except BlockingIOError:
                break
            if not data:
                break
            heard = True
            job_log.write(data)
            job_log.flush()
            if self._stream:
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
        return heard

    def _listen(self) -> bool:
        """Take in what the guest has told its ports since the last call; True if it told anything."""
        told = self._control.lines()
        for line in told:
            word, _, value = line.partition(" ")
            if word == "job":
                self._job_began = True
                say(f"guest {self._key}: job begins {value} s after the kernel")
            elif word == "late":
                self._late = f"exceeded its limit of {self._timeout_s:.0f} s (its job was ended {value} s in)"
            elif word == "exit":
                self._status = int(value)
        events = self._events.lines() if self._on_event else []
        for line in events:
            assert self._on_event
            self._on_event(line)
        return bool(told or events)

    def _death(self, returncode: int, errors_path: Path) -> str:
        errors = errors_path.read_text(errors="replace").strip()
        if returncode:
            return f"QEMU ended with status {returncode}: {errors[-500:]}"
        return "kernel panic or reset" if self._job_began else "kernel panic or reset before the job began"
