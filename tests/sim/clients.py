# SPDX-License-Identifier: Apache-2.0
"""Run the simulated GPU's clients from a test, each in the cgroup it is to be judged by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.sim.nvsim import BUILD, CGROUPS

CUDA_CLIENT = Path(__file__).parent / "cuda_client.py"
READY_LIMIT_S = 60.0


class ClientError(Exception):
    """A client did not start or did not answer as it should; the text holds what it said."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with the simulated libraries in the loader's path, and `extra`."""
    return {**os.environ, "LD_LIBRARY_PATH": str(BUILD / "lib"), **(extra or {})}


def spawn(
    argv: Sequence[str | Path], *, cgroup: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a program with piped stdin, stdout and stderr, inside `cgroup` from its first instruction on."""

    def enter() -> None:
        if cgroup:
            (cgroup / "cgroup.procs").write_text("0")

    return subprocess.Popen(
        [str(word) for word in argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(env),
        preexec_fn=enter,
    )


def finish(process: subprocess.Popen[str], limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Wait for a program's end. Raises TimeoutExpired; the program is then still there."""
    out, err = process.communicate(timeout=limit_s)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(
    argv: Sequence[str | Path],
    *,
    cgroup: Path | None = None,
    env: Mapping[str, str] | None = None,
    limit_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit status."""
    return finish(spawn(argv, cgroup=cgroup, env=env), limit_s)


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, as `run` does."""
    return run([sys.executable, "-c", code], **options)


def nvcall(*words: str | int, **options: Any) -> dict[str, Any]:
    """Run nvcall and return its JSON. Raises ClientError when it could not start or printed none."""
    done = run([BUILD / "bin/nvcall", *map(str, words)], **options)
    if done.returncode not in (0, 1) or not done.stdout:
        raise ClientError(f"nvcall {words}: status {done.returncode}: {done.stderr}")
    return dict(json.loads(done.stdout))


@contextmanager
def cgroup(name: str) -> Iterator[Path]:
    """Make a cgroup below the root for a with block; then kill what is left in it and remove it."""
    path = CGROUPS / name
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        kill_cgroup(path)
        path.rmdir()


def kill_cgroup(path: Path, limit_s: float = 60.0) -> None:
    """Kill everything in a cgroup and wait until it is empty. Raises ClientError naming what stays."""
    (path / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + limit_s
    while "populated 1" in (path / "cgroup.events").read_text():
        if time.monotonic() > deadline:
            pids = (path / "cgroup.procs").read_text().split()
            raise ClientError(f"{path}: still there after {limit_s:g} s: {pids}")
        time.sleep(0.01)


@contextmanager
def burner(
    *,
    procs: int = 1,
    cgroup: Path | None = None,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Have gpu-burn at work for the length of a with block; it is ready when the block begins.

    With `procs` > 1 the process given is the parent of those that burn. Raises ClientError when it does not
    start.
    """
    words: list[str | Path] = [BUILD / "bin/gpu-burn", "--procs", str(procs), *options]
    process = spawn(words, cgroup=cgroup, env=env)
    try:
        for _ in range(procs):
            _expect_ready(process)
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


def _expect_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    line = process.stdout.readline()
    if not line.startswith("ready"):
        process.kill()
        _, err = process.communicate(timeout=READY_LIMIT_S)
        raise ClientError(f"gpu-burn: {line!r} {err}")
