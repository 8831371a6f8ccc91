# SPDX-License-Identifier: Apache-2.0
"""The standalone configuration: YAML in, frozen values out, one clear error for whatever is wrong.

Every error names the field's path (`owners[0].devices[1]`) and the remedy. What only the node can tell (does
the container exist, is the UUID a GPU here) is checked by resolve.py.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spotgpu.names import AGENT_PORT, RUN_DIR, STATE_DIR, TRACES_FILE
from spotgpu_agent.errors import ConfigError
from spotgpu_agent.fields import Fields, ItemError, absolute, address, choice, one_of, strings, text
from spotgpu_agent.model import AtDeadline, OnHold, Policy, ReleaseOn, ReturnOn
from spotgpu_agent.units import duration_ns, size_bytes

MAX_OWNERS: Final = 64
MAX_MS: Final = 600_000  # khook's bound on deadline, orphan and heartbeat
VENDORS: Final = ("nvidia",)
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Selector:
    """Which containers: one by id, or all that carry these labels.

    Attributes:
        path: of the field, for errors.
    """

    path: str
    id: str | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, container_id: str, labels: dict[str, str]) -> bool:
        """Whether a container is meant."""
        if self.id is not None:
            return container_id == self.id
        return all(labels.get(key) == value for key, value in self.labels)

    def __str__(self) -> str:
        return f"id {self.id}" if self.id is not None else ", ".join(f"{k}={v}" for k, v in self.labels)


@dataclass(frozen=True, slots=True)
class SpotConfig:
    """Spot containers that may have some of an owner's devices."""

    path: str
    container: Selector
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnerConfig:
    """One owner: its container, its devices, its policy and who may have them meanwhile."""

    path: str
    name: str
    container: Selector
    devices: tuple[str, ...]
    policy: Policy
    spot: tuple[SpotConfig, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration.

    Attributes:
        listen: address and port of the HTTP face.
        traces: file of finished traces.
        orphan_ms: how long a new agent may adopt a dead one's holds.
        heartbeat_ms: silence after which the kernel takes the agent for dead; 0: only its socket's end tells.
        record: file the core's events are recorded to, for replay; None: not recorded.
    """

    node: str
    containerd_socket: str
    containerd_namespace: str
    state_dir: Path
    run_dir: Path
    listen: str
    traces: Path
    vendor: str
    orphan_ms: int
    heartbeat_ms: int
    owners: tuple[OwnerConfig, ...]
    record: Path | None = None


def load(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: it can't be read, is no YAML, or a field is wrong.
    """
    import yaml  # imported late: start-up time counts, and not every command reads a configuration

    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        remedy = "give the path of a configuration file"
        raise ConfigError(error.strerror or str(error), str(path), remedy) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"not YAML: {' '.join(str(error).split())}", str(path), "mend the file's syntax"
        ) from error
    return parse(data)


def parse(data: object) -> Config:
    """Check a configuration that YAML has read.

    Raises:
        ConfigError: a field is wrong.
    """
    top = Fields(data, "", "the configuration")
    containerd = top.fields("containerd")
    policy = top.fields("policy")
    node = top.take("node", text, socket.gethostname())
    orphan_ms = policy.take("orphan", _milliseconds(0), 3000)
    heartbeat_ms = policy.take("heartbeat", _milliseconds(0), 5000)
    defaults = _policy(policy, _DEFAULT_POLICY)
    config = Config(
        node=node,
        containerd_socket=containerd.take("socket", absolute, "/run/containerd/containerd.sock"),
        containerd_namespace=containerd.take("namespace", text, "default"),
        state_dir=Path(top.take("state_dir", absolute, STATE_DIR)),
        run_dir=Path(top.take("run_dir", absolute, RUN_DIR)),
        listen=top.take("listen", address, f"127.0.0.1:{AGENT_PORT}"),
        traces=Path(top.take("traces", absolute, TRACES_FILE)),
        vendor=top.take("vendor", one_of(VENDORS), "nvidia"),
        orphan_ms=orphan_ms,
        heartbeat_ms=heartbeat_ms,
        owners=tuple(_owner(owner, defaults) for owner in top.items("owners", MAX_OWNERS)),
        record=_optional_path(top.take("record", absolute, "")),
    )
    containerd.done()
    policy.done()
    top.done()
    _check_owners(config.owners)
    return config


_DEFAULT_POLICY: Final = Policy(
    deadline_ns=10_000_000_000,
    at_deadline=AtDeadline.RELEASE,
    return_on=ReturnOn.COMPUTE,
    on_hold=OnHold.KILL,
    release_on=ReleaseOn.PROOF,
    evict_grace_ns=0,
    max_inactive_ns=300_000_000_000,
    memory_slack=64 << 20,
)


def _policy(fields: Fields, base: Policy) -> Policy:
    policy = Policy(
        deadline_ns=fields.take("deadline", _milliseconds(1), base.deadline_ns // 1_000_000) * 1_000_000,
        at_deadline=fields.take("at_deadline", choice(AtDeadline), base.at_deadline),
        return_on=fields.take("return_on", choice(ReturnOn), base.return_on),
        on_hold=fields.take("on_hold", choice(OnHold), base.on_hold),
        release_on=fields.take("release_on", choice(ReleaseOn), base.release_on),
        evict_grace_ns=fields.take("evict_grace", duration_ns, base.evict_grace_ns),
        max_inactive_ns=fields.take("max_inactive", duration_ns, base.max_inactive_ns),
        memory_slack=fields.take("memory_slack", size_bytes, base.memory_slack),
        allow_holders=fields.take("allow_holders", _cgroup_paths, base.allow_holders),
    )
    if policy.evict_grace_ns and policy.on_hold is OnHold.KILL:
        fields.wrong(
            "evict_grace", "on_hold: kill leaves no grace", "set on_hold: notify, or evict_grace: 0s"
        )
    if policy.evict_grace_ns >= policy.deadline_ns:
        fields.wrong("evict_grace", "the grace ends after the deadline", "make it shorter than the deadline")
    return policy


def _owner(fields: Fields, defaults: Policy) -> OwnerConfig:
    name = fields.take("name", _owner_name)
    devices = fields.take("devices", _devices)
    own = fields.fields("policy")
    for field in ("orphan", "heartbeat"):
        if field in own.left:
            own.wrong(field, "is the agent's, not an owner's", f"set policy.{field} at the top")
    policy = _policy(own, defaults)
    own.done()
    owner = OwnerConfig(
        path=fields.path,
        name=name,
        container=_selector(fields.fields("container")),
        devices=devices,
        policy=policy,
        spot=tuple(_spot(spot, devices) for spot in fields.items("spot", 64)),
    )
    fields.done()
    return owner


def _spot(fields: Fields, owned: tuple[str, ...]) -> SpotConfig:
    devices = fields.take("devices", _devices, owned)
    for index, device in enumerate(devices):
        if device not in owned:
            fields.wrong(f"devices[{index}]", f"{device} is not this owner's", "name a device of the owner")
    spot = SpotConfig(fields.path, _selector(fields.fields("container")), devices)
    fields.done()
    return spot


def _selector(fields: Fields) -> Selector:
    container_id = fields.take("id", text, "")
    no_labels: tuple[tuple[str, str], ...] = ()
    labels = fields.take("labels", _labels, no_labels)
    if bool(container_id) == bool(labels):
        raise ConfigError(
            "one of id and labels selects a container", fields.path, "write {id: …} or {labels: {…}}"
        )
    fields.done()
    return Selector(fields.path, container_id or None, labels)


def _check_owners(owners: tuple[OwnerConfig, ...]) -> None:
    names: dict[str, str] = {}
    devices: dict[str, str] = {}
    for owner in owners:
        if owner.name in names:
            remedy = "give every owner its own name"
            raise ConfigError(f"{owner.name} is taken by {names[owner.name]}", f"{owner.path}.name", remedy)
        names[owner.name] = owner.path
        for index, device in enumerate(owner.devices):
            if device in devices:
                message = f"{device} belongs to {devices[device]} already"
                remedy = "a device has one owner: take it out of one of them"
                raise ConfigError(message, f"{owner.path}.devices[{index}]", remedy)
            devices[device] = owner.path
        for spot in owner.spot:
            if (spot.container.id, spot.container.labels) == (owner.container.id, owner.container.labels):
                remedy = "name another container"
                raise ConfigError("the owner can't be its own spot container", spot.container.path, remedy)


# Readers ----------------------------------------------------------------------------------------------------


def _owner_name(value: object) -> str:
    name = text(value)
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: letters, digits, `.`, `_` and `-` only, 63 at most")
    return name


def _devices(value: object) -> tuple[str, ...]:
    devices = strings(value)
    if not devices:
        raise ValueError("no device")
    for index, device in enumerate(devices):
        if not device.startswith("GPU-"):
            raise ItemError(f"[{index}]", f"{device!r} is no UUID like GPU-…")
        if device in devices[:index]:
            raise ItemError(f"[{index}]", f"{device} is named twice")
    return tuple(devices)


def _cgroup_paths(value: object) -> tuple[str, ...]:
    paths = strings(value)
    for index, path in enumerate(paths):
        if not path.startswith("/") or not path.strip("/"):
            raise ItemError(
                f"[{index}]", f"{path!r} is no cgroup path below the root, like /system.slice/x.service"
            )
    return tuple(paths)


def _labels(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not value:
        raise ValueError("labels are a mapping with at least one entry")
    for key, label in value.items():
        if not isinstance(key, str) or not isinstance(label, str):
            raise ItemError(f".{key}", f"{label!r}: a label's value is text; put it in quotes")
    return tuple(sorted(value.items()))


def _milliseconds(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        ms = duration_ns(value) // 1_000_000
        if not least <= ms <= MAX_MS:
            raise ValueError(f"{value!r} is not between {least} ms and {MAX_MS // 60_000} min")
        return ms

    return read


def _optional_path(path: str) -> Path | None:
    return Path(path) if path else None
