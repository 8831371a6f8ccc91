# SPDX-License-Identifier: Apache-2.0
"""A node with everything real but the GPU: simulated driver, khook, containerd, owners, and the agent.

    with node(gpus=2) as rig:
        rig.add_owner("dev", gpu=0, deadline="30s")
        rig.start_agent()
        spot = rig.start_spot("dev")
        rig.wait_state("dev", "lent")
        rig.touch("dev")

The agent is a process of its own, started the way an administrator does; its log is read as it comes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from spotgpu.traces import Span, Trace, assemble, parse_span
from tests.guestlib.containerd import (
    CGROUPS,
    NAMESPACE,
    SOCKET,
    Container,
    delete_container,
    run_container,
    running_containerd,
    wait_until,
)
from tests.guestlib.khook import KMOD
from tests.sim.nvsim import BUILD, Sim

LABEL = "spotgpu.dev/lender"
RESULTS = Path(os.environ.get("RESULTS", "/results"))
# Emulation on a busy host: an agent starts in 10 to 30 s.
START_LIMIT_S = 120.0
STEP_LIMIT_S = 60.0


@dataclass
class Owner:
    """An owner and what is on its GPU."""

    name: str
    gpu: int
    uuid: str
    container: Container
    policy: Mapping[str, Any]
    spots: list[Container] = field(default_factory=list)


@dataclass(frozen=True)
class Touch:
    """An owner's first compute call, under way."""

    process: subprocess.Popen[str]

    def pending(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def ready(self) -> None:
        """With --wait: wait until it has everything open."""
        assert self.process.stdout
        assert self.process.stdout.readline().strip() == "ready"

    def go(self) -> None:
        """With --wait: let it make its call."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self, limit_s: float = STEP_LIMIT_S) -> dict[str, Any]:
        """Wait for it; the one call as nvcall saw it: start_ns, end_ns, result, errno, status."""
        out, err = self.process.communicate(timeout=limit_s)
        assert out.strip(), err
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told


class AgentProcess:
    """`spotgpu agent --standalone`, running."""

    def __init__(self, config: Path, log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        self._from = log.stat().st_size if log.exists() else 0
        argv = [sys.executable, "-m", "spotgpu", "agent", "--standalone", str(config)]
        with log.open("ab") as sink:
            self.process = subprocess.Popen(argv, stderr=sink, env={**os.environ, **env})

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as source:
            source.seek(self._from)
            text = source.read().decode(errors="replace")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def said(self, **fields: object) -> list[dict[str, Any]]:
        """Log lines that have all these fields."""
        return [line for line in self.lines() if all(line.get(key) == value for key, value in fields.items())]

    def children(self, module: str) -> list[int]:
        """Pids of its helpers that run a module."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()  # a child is its thread's
        pids = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
        return [pid for pid in pids if module in Path(f"/proc/{pid}/cmdline").read_text()]

    def wait_ready(self) -> None:
        """Wait until it is armed. Raises AssertionError with its log when it ends instead."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the agent ended with {self.process.returncode}:\n{self.log.read_text()}"
                )
            return bool(self.said(msg="ready"))

        wait_until(ready, START_LIMIT_S, "the agent is ready", 0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM, limit_s: float = STEP_LIMIT_S) -> int:
        """End it with a signal; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(limit_s)


class Rig:
    """The node."""

    def __init__(self, sim: Sim, folder: Path) -> None:
        self.sim = sim
        self.folder = folder
        self.owners: dict[str, Owner] = {}
        self.agent: AgentProcess | None = None
        self.traces = RESULTS / f"{folder.name}-traces.jsonl"
        self.log = RESULTS / f"{folder.name}-agent.log"
        self._uuids = [gpu.uuid for gpu in sim.gpus()]
        self._serial = 0
        self._traces_read = 0
        self._spans: dict[str, list[Span]] = {}
        self._ended: list[Trace] = []
        self._processes: list[subprocess.Popen[Any]] = []
        self._cgroups: list[Path] = []

    # Containers ---------------------------------------------------------------------------------------------

    def add_owner(self, name: str, gpu: int, **policy: Any) -> Owner:
        """Start an owner container that uses no GPU; the simulated driver guards its GPU from now on."""
        container = run_container(f"owner-{name}", ["sleep", "infinity"], devices=nodes(gpu))
        owner = Owner(name, gpu, self._uuids[gpu], container, policy)
        self.owners[name] = owner
        self.sim.guard_add(gpu, container.cgroup)
        return owner

    def start_spot(self, owner: str, procs: int = 1, mib: int = 1024, *words: str) -> Container:
        """Start a spot container that burns the owner's GPU; returned when each process has a context."""
        self._serial += 1
        one = self.owners[owner]
        argv = [str(BUILD / "bin/gpu-burn"), "--mib", str(mib), "--procs", str(procs), *words]
        name = f"spot-{owner}-{self._serial}"
        spot = run_container(name, argv, devices=nodes(one.gpu), labels={LABEL: owner})
        one.spots.append(spot)
        wait_until(lambda: spot.output().count("ready") == procs, STEP_LIMIT_S, f"{name} burns", 0.1)
        return spot

    def forget_spots(self, owner: str) -> None:
        """Delete the owner's spot containers."""
        one = self.owners[owner]
        for spot in one.spots:
            delete_container(spot)
        one.spots.clear()

    # Processes ----------------------------------------------------------------------------------------------

    def spawn(self, cgroup: Path, *argv: str | Path) -> subprocess.Popen[str]:
        """Start a program that is in the cgroup from its first instruction."""
        enter = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
        command = ["/bin/sh", "-c", enter, str(cgroup), *map(str, argv)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._processes.append(process)
        return process

    def touch(self, owner: str, *words: str) -> Touch:
        """The owner's first compute call, by a process of its container's cgroup."""
        one = self.owners[owner]
        nvcall = BUILD / "bin/nvcall"
        return Touch(self.spawn(one.container.cgroup, nvcall, "compute", "-d", str(one.gpu), *words))

    def cgroup(self, name: str) -> Path:
        """A cgroup of nobody's."""
        self._serial += 1
        path = CGROUPS / f"{name}-{self._serial}"
        path.mkdir()
        self._cgroups.append(path)
        return path

    # The agent ----------------------------------------------------------------------------------------------

    def config(self, **top: Any) -> Path:
        """Write the configuration; `top` fields replace ours."""
        policy = {"deadline": "120s", "max_inactive": "500ms", "heartbeat": "60s", "orphan": "120s"}
        data: dict[str, Any] = {
            "node": "guest",
            "containerd": {"socket": str(SOCKET), "namespace": NAMESPACE},
            "state_dir": str(self.folder / "state"),
            "listen": "127.0.0.1:9464",
            "traces": str(self.traces),
            "record": str(RESULTS / f"{self.folder.name}-record.jsonl"),
            "owners": [
                {
                    "name": owner.name,
                    "container": {"id": owner.container.name},
                    "devices": [owner.uuid],
                    "policy": dict(owner.policy),
                    "spot": [{"container": {"labels": {LABEL: owner.name}}}],
                }
                for owner in self.owners.values()
            ],
            **top,
        }
        data["policy"] = {**policy, **top.get("policy", {})}
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    def start_agent(self, env: Mapping[str, str] | None = None, **top: Any) -> AgentProcess:
        """Start the agent and wait until it is armed."""
        self.agent = AgentProcess(self.config(**top), self.log, env or {})
        self.agent.wait_ready()
        return self.agent

    def status(self) -> dict[str, Any]:
        """What the agent knows by itself; `spotgpu status` also has the kernel's dumps, which cost more."""
        with urllib.request.urlopen("http://127.0.0.1:9464/statusz", timeout=STEP_LIMIT_S) as page:
            told: dict[str, Any] = json.load(page)
        return told

    def state(self, owner: str) -> str:
        """State of the owner's device; `no agent` when none answers."""
        try:
            owners = self.status()["owners"]
        except OSError:
            return "no agent"
        return next(str(one["state"]) for one in owners if one["name"] == owner)

    def device(self, owner: str) -> dict[str, Any]:
        """The owner's device as `spotgpu status` has it."""
        return next(one for one in self.status()["devices"] if one["owner"] == owner)

    def wait_state(self, owner: str, state: str, limit_s: float = STEP_LIMIT_S) -> None:
        """Wait until the owner's device is in a state."""
        wait_until(lambda: self.state(owner) == state, limit_s, f"{owner} is {state}", 0.2)

    def lend(self, owner: str, procs: int = 1) -> Container:
        """Have a spot container on the owner's device."""
        spot = self.start_spot(owner, procs)
        self.wait_state(owner, "lent")
        return spot

    def trace(self, owner: str, after: int = 0, limit_s: float = STEP_LIMIT_S) -> Trace:
        """The owner's newest trace, once it has more than `after`."""
        wait_until(lambda: len(self.traced(owner)) > after, limit_s, f"a new trace of {owner}", 0.1)
        return self.traced(owner)[-1]

    def traced(self, owner: str) -> list[Trace]:
        """All traces of an owner, in the order they ended."""
        self._read_traces()
        return [trace for trace in self._ended if trace.root.attributes["spotgpu.owner"] == owner]

    def _read_traces(self) -> None:
        """Read on from where it ended last: hundreds of traces are asked for hundreds of times."""
        if not self.traces.exists():
            return
        with self.traces.open("rb") as source:
            source.seek(self._traces_read)
            text = source.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._traces_read += len(whole)
        for line in whole.decode().splitlines():
            span = parse_span(line)
            assert span is not None, line
            spans = self._spans.setdefault(span.trace_id, [])
            spans.append(span)
            if span.parent is None and (trace := assemble(spans)) is not None:  # the root ends last
                self._ended.append(trace)

    # The end ------------------------------------------------------------------------------------------------

    def executed(self, owner: str) -> int:
        """Compute calls of the owner's cgroup that the driver has executed."""
        number = self.owners[owner].container.cgroup_id
        return sum(one.cgroup == number for one in self.sim.audit())

    def close(self) -> None:
        """Take everything away."""
        self.sim.clear_faults()
        if self.agent is not None and self.agent.process.poll() is None:
            self.agent.stop()
        for process in self._processes:
            process.kill()
            process.communicate(timeout=STEP_LIMIT_S)
        for owner in self.owners.values():
            self.forget_spots(owner.name)
            delete_container(owner.container)
        for path in self._cgroups:
            (path / "cgroup.kill").write_text("1")
            wait_until(lambda path=path: not _populated(path), STEP_LIMIT_S, f"{path} is empty")  # type: ignore[misc]
            path.rmdir()


def _populated(path: Path) -> bool:
    return "populated 1" in (path / "cgroup.events").read_text()


def nodes(gpu: int) -> list[str]:
    """The device nodes that a container with this GPU gets."""
    return [f"/dev/nvidia{gpu}", "/dev/nvidiactl", "/dev/nvidia-uvm"]


@contextmanager
def node(name: str, gpus: int = 1, **parameters: object) -> Iterator[Rig]:
    """Have the node for the length of a `with`.

    Args:
        name: of the suite, for its files.
        gpus: simulated GPUs.
        parameters: more of the simulated driver's.
    """
    folder = Path("/run/spotgpu-agent-test") / name
    folder.mkdir(parents=True)
    sim = Sim.load(gpus=gpus, ctx_mib=64, **parameters)
    sim.install_libraries()
    subprocess.run(["insmod", str(KMOD)], check=True)
    sim.guard_allow(own_cgroup())
    try:
        with running_containerd():
            rig = Rig(sim, folder)
            try:
                yield rig
            finally:
                rig.close()
    finally:
        _unload(sim)


def _unload(sim: Sim) -> None:
    """rmmod of khook is refused for a moment after a hold."""
    deadline = time.monotonic() + STEP_LIMIT_S
    while subprocess.run(["rmmod", "khook"], check=False, capture_output=True).returncode:
        if time.monotonic() > deadline:
            raise AssertionError("khook can't be unloaded")
        time.sleep(0.2)
    sim.unload()


def own_cgroup() -> Path:
    """The cgroup that the tests and the agent run in."""
    return CGROUPS / Path("/proc/self/cgroup").read_text().strip().removeprefix("0::").lstrip("/")
