# SPDX-License-Identifier: Apache-2.0
"""What the harness needs of the host: tools, a place for caches, commands that say what they are doing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
HARNESS = Path(__file__).resolve().parent

# Tool on PATH -> the Debian package that brings it.
TOOLS = {
    "apt-get": "apt",
    "git": "git",
    "mke2fs": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "zstd": "zstd",
}

_START = time.monotonic()
_HEARTBEAT_S = 10.0


class HarnessError(Exception):
    """The harness cannot do its work; the text says which part and what to do about it."""


class CommandFailedError(HarnessError):
    """A command of the host ended with a status other than 0."""


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_sink: Callable[[str], object] = _to_stderr


def set_sink(sink: Callable[[str], object] | None) -> None:
    """Send progress lines to `sink`, or back to stderr."""
    global _sink
    _sink = sink or _to_stderr


def say(text: str) -> None:
    """Print one progress line with the seconds since the harness started."""
    _sink(f"[vm {time.monotonic() - _START:6.1f} s] {text}")


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce `text`, and its duration once it is done."""
    say(f"{text} …")
    begun = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - begun:.1f} s")


def cache_root() -> Path:
    """Return the folder of all caches: $SPOTGPU_CACHE, or ~/.cache/spotgpu."""
    return Path(os.environ.get("SPOTGPU_CACHE") or Path.home() / ".cache" / "spotgpu")


def search_path() -> str:
    """Return PATH with the sbin folders, where Debian keeps mke2fs."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def check_tools() -> None:
    """Raise HarnessError naming every tool the host lacks and the packages that bring them."""
    missing = {tool: package for tool, package in TOOLS.items() if not shutil.which(tool, path=search_path())}
    if missing:
        raise HarnessError(
            f"missing on this host: {', '.join(sorted(missing))}; "
            f"run: apt-get install {' '.join(sorted(set(missing.values())))}"
        )
    if os.geteuid() != 0:
        raise HarnessError("building a guest needs root (mounts and a chroot); run as root")


def run(
    argv: Sequence[str | Path],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    name: str | None = None,
) -> str:
    """Run a command to its end and return its stdout.

    With `log`, both streams go to that file instead, and a progress line appears every ten seconds. The
    command dies with this process. `name` is what messages call it. Raises CommandFailedError with the tail
    of what it printed.
    """
    command = [str(part) for part in argv]
    name = name or " ".join(command)
    environment = {**os.environ, "PATH": search_path(), "LC_ALL": "C.UTF-8", **(env or {})}
    guarded = ["setpriv", "--pdeathsig", "KILL", "--", *command]
    if log is None:
        done = subprocess.run(guarded, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CommandFailedError(_failure(name, done.returncode, done.stdout + done.stderr))
        return done.stdout
    with log.open("ab") as sink:
        process = subprocess.Popen(guarded, env=environment, stdout=sink, stderr=sink)
        try:
            status = _wait_loudly(process, log)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if status:
        raise CommandFailedError(_failure(name, status, log.read_text(errors="replace")))
    return ""


def _wait_loudly(process: subprocess.Popen[bytes], log: Path) -> int:
    begun = time.monotonic()
    while True:
        try:
            return process.wait(timeout=_HEARTBEAT_S)
        except subprocess.TimeoutExpired:
            lines = log.read_text(errors="replace").strip().splitlines()
            say(f"  … {time.monotonic() - begun:.0f} s: {lines[-1][:90] if lines else 'no output yet'}")


def _failure(name: str, status: int, output: str) -> str:
    tail = "\n".join(output.strip().splitlines()[-30:])
    return f"{name[:300]}: exit status {status}\n{tail}"
