# SPDX-License-Identifier: Apache-2.0
"""A real containerd and runc for guest tests, driven through `ctr`; no images, no registry, no CRI.

A container's root is the guest's own root under a private writable layer, so that python3 and every library
are there. cgroup v2, cgroupfs driver: a container's cgroup is /sys/fs/cgroup/<namespace>/<id>.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SOCKET = Path("/run/containerd/containerd.sock")
CGROUPS = Path("/sys/fs/cgroup")
NAMESPACE = "spotgpu"
_STATE = Path("/run/spotgpu-test")
# CRI wants CNI and pause images; the snapshotters want file systems that are not here. None is used.
_CONFIG = """version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.opt",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
"""
# Emulation on a busy host: containerd itself needs a few seconds, a container about one.
START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
# What a container sees of the guest beside its root: the checkout, the Python site, the native builds.
SHARED = ("/src", "/opt/spotgpu/site", "/opt/spotgpu/build")


class ContainerdError(Exception):
    """containerd or a container did not do what was asked; the text holds what it said."""


@dataclass(frozen=True)
class Mount:
    """A bind mount of `source` (in the guest) at `target` (in the container)."""

    source: str
    target: str
    read_only: bool = True

    def option(self) -> str:
        """Return it as an argument of `ctr run --mount`."""
        mode = "ro" if self.read_only else "rw"
        return f"type=bind,src={self.source},dst={self.target},options=rbind:{mode}"


@dataclass(frozen=True)
class Container:
    """A running container: `pid` of its first process, `cgroup` and `log` as paths in the guest."""

    name: str
    namespace: str
    pid: int
    cgroup: Path
    log: Path
    root: Path = field(repr=False)

    @property
    def cgroup_id(self) -> int:
        """The cgroup's v2 id, which is its inode number."""
        return self.cgroup.stat().st_ino

    def output(self) -> str:
        """Return what the container's processes have printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def populated(self) -> bool:
        """Whether any process is left in its cgroup."""
        try:
            return "populated 1" in (self.cgroup / "cgroup.events").read_text()
        except FileNotFoundError:
            return False


def wait_until(condition: Callable[[], bool], limit_s: float, what: str, poll_s: float = 0.02) -> None:
    """Wait until `condition()` holds. Raises TimeoutError naming `what` after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(poll_s)


def start_containerd() -> subprocess.Popen[bytes]:
    """Start containerd at its usual socket and return it once it answers. Raises ContainerdError."""
    _STATE.mkdir(parents=True, exist_ok=True)
    config, log = _STATE / "containerd.toml", _STATE / "containerd.log"
    config.write_text(_CONFIG)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            ["containerd", "--config", str(config), "--log-level", "warn"], stdout=sink, stderr=sink
        )

    def answers() -> bool:
        if process.poll() is not None:
            raise ContainerdError(f"containerd ended with {process.returncode}:\n{log.read_text()}")
        return SOCKET.exists() and _ctr(["version"], check=False).returncode == 0

    try:
        wait_until(answers, START_LIMIT_S, "containerd answers")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def stop_containerd(process: subprocess.Popen[bytes]) -> None:
    """End containerd; its containers live on, as they do on a node. Raises subprocess.TimeoutExpired."""
    process.terminate()
    process.wait(timeout=STOP_LIMIT_S)


@contextmanager
def running_containerd() -> Iterator[subprocess.Popen[bytes]]:
    """Have containerd for the length of a `with`."""
    process = start_containerd()
    try:
        yield process
    finally:
        stop_containerd(process)


def make_rootfs(name: str) -> Path:
    """Return a root for container `name`: the guest's own under a private layer in memory."""
    top = _STATE / "roots" / name
    for folder in ("upper", "work", "root"):
        (top / folder).mkdir(parents=True)
    layers = f"lowerdir=/,upperdir={top}/upper,workdir={top}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", str(top / "root")], check=True)
    return top / "root"


def remove_rootfs(root: Path) -> None:
    """Undo make_rootfs."""
    subprocess.run(["umount", str(root)], check=True)
    subprocess.run(["rm", "-rf", str(root.parent)], check=True)


def run_container(
    name: str,
    argv: Sequence[str],
    *,
    mounts: Sequence[Mount] = (),
    devices: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
    options: Sequence[str] = (),
) -> Container:
    """Run `argv` in a new container and return it once its first process runs.

    `devices` are device nodes of the guest; the guest's PYTHONPATH and PATH are passed on and `env` wins over
    them; `options` go to `ctr run` as they are (such as `--net-host`). Raises ContainerdError.
    """
    root = make_rootfs(name)
    log = _STATE / f"{name}.log"
    log.unlink(missing_ok=True)
    inherited = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    pid_file = _STATE / f"{name}.pid"
    arguments = [
        "run",
        "--detach",
        "--rootfs",
        "--log-uri",
        f"file://{log}",
        "--pid-file",
        str(pid_file),
        *options,
    ]
    for mount in (*(Mount(path, path) for path in SHARED if Path(path).is_dir()), *mounts):
        arguments += ["--mount", mount.option()]
    for device in devices:
        arguments += ["--device", device]
    for key, value in (labels or {}).items():
        arguments += ["--label", f"{key}={value}"]
    for key, value in {**inherited, **(env or {})}.items():
        arguments += ["--env", f"{key}={value}"]
    try:
        _ctr([*arguments, str(root), name, *argv], namespace=namespace)
        pid = int(pid_file.read_text())
    except BaseException:
        remove_rootfs(root)
        raise
    return Container(name, namespace, pid, CGROUPS / namespace / name, log, root)


def kill_container(container: Container, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the container's first process through containerd, whatever became of it."""
    _ctr(
        ["task", "kill", "--signal", str(number.value), container.name],
        namespace=container.namespace,
        check=False,
    )


def wait_container(container: Container, limit_s: float = STOP_LIMIT_S) -> int:
    """Wait until the container has ended by itself, and return its exit status; it must still be deleted.

    Raises TimeoutError after `limit_s` seconds, ContainerdError if containerd does not tell the status.
    """
    deadline = time.monotonic() + limit_s
    wait_until(lambda: not container.populated(), limit_s, f"container {container.name} ends")
    while True:
        done = _ctr(["task", "delete", container.name], namespace=container.namespace, check=False)
        if done.returncode == 0:
            # ctr itself ends with 0 and tells a status other than 0 in a warning.
            told = re.search(r"exit with non-zero exit code (\d+)", done.stderr)
            return int(told[1]) if told else 0
        # The processes are gone a moment before the shim has told containerd so.
        if "must be stopped" not in done.stderr or time.monotonic() > deadline:
            raise ContainerdError(f"container {container.name}: no exit status: {done.stderr}")


def delete_container(container: Container) -> None:
    """Kill what is left of the container and forget it. Raises ContainerdError if containerd keeps it."""
    _ctr(["task", "delete", "--force", container.name], namespace=container.namespace, check=False)
    wait_until(lambda: not container.populated(), STOP_LIMIT_S, f"cgroup of {container.name} is empty")
    _ctr(["container", "delete", container.name], namespace=container.namespace)
    remove_rootfs(container.root)


def _ctr(
    arguments: Sequence[str], *, namespace: str = NAMESPACE, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["ctr", "--namespace", namespace, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=START_LIMIT_S,
    )
    if check and done.returncode:
        raise ContainerdError(f"ctr {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr}")
    return done
