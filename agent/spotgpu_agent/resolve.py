# SPDX-License-Identifier: Apache-2.0
"""The configuration against the node: which containers and devices it means. Pure.

At the start every doubt is an error and nothing is armed. Later the same rules make facts: an owner that is
gone, a spot container that may not be lent anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotgpu_agent.config import Config, OwnerConfig, Selector
from spotgpu_agent.errors import ConfigError
from spotgpu_agent.events import ContainersSeen
from spotgpu_agent.model import OwnerContainer, SpotContainer, below


@dataclass(frozen=True, slots=True)
class Container:
    """A container of containerd.

    Attributes:
        pid: of its first process; 0 when it does not run.
        cgroup: cgroup v2 id; 0 when it does not run.
        path: cgroup path.
        host_pids: it shares the initial pid namespace.
    """

    id: str
    labels: dict[str, str]
    pid: int = 0
    cgroup: int = 0
    path: str = ""
    host_pids: bool = False

    @property
    def running(self) -> bool:
        """Whether it has a first process in a cgroup of its own."""
        return bool(self.pid and self.cgroup)


def check_devices(config: Config, inventory: Sequence[str]) -> None:
    """Every configured device is a GPU of this node.

    Args:
        config: the configuration.
        inventory: UUIDs the driver knows.

    Raises:
        ConfigError: one is not.
    """
    for owner in config.owners:
        for index, device in enumerate(owner.devices):
            if device not in inventory:
                known = ", ".join(inventory) or "none"
                remedy = f"name one of this node's: {known}"
                raise ConfigError(f"no GPU {device} on this node", f"{owner.path}.devices[{index}]", remedy)


def check_containers(config: Config, containers: Iterable[Container], self_path: str) -> None:
    """Every owner runs, is one container, and nobody is owner and spot at once.

    Args:
        config: the configuration.
        containers: all of the namespace.
        self_path: the agent's own cgroup path.

    Raises:
        ConfigError: something doesn't fit.
    """
    everything = list(containers)
    owners = {owner.name: _only(owner.container, everything, config) for owner in config.owners}
    for owner in config.owners:
        mine = owners[owner.name]
        if below(self_path, mine.path):
            remedy = "run the agent outside it"
            raise ConfigError(f"{mine.id} holds this agent", owner.container.path, remedy)
        for spot in owner.spot:
            for container in _chosen(spot.container, everything):
                _check_spot(spot.container, container, owners, self_path)


def _only(selector: Selector, containers: list[Container], config: Config) -> Container:
    found = _chosen(selector, containers)
    where = f"in containerd's namespace {config.containerd_namespace}"
    if not found:
        known = ", ".join(sorted(container.id for container in containers)[:8]) or "none"
        remedy = f"create it, or correct the selector; there is: {known}"
        raise ConfigError(f"no container with {selector} {where}", selector.path, remedy)
    running = [container for container in found if container.running]
    if not running:
        message = f"{', '.join(container.id for container in found)} does not run"
        raise ConfigError(message, selector.path, "start the owner's container, then the agent")
    if len(running) > 1:
        message = f"{', '.join(container.id for container in running)} all have {selector}"
        raise ConfigError(message, selector.path, "an owner is one container: select it by id")
    return running[0]


def _check_spot(
    selector: Selector, container: Container, owners: dict[str, Container], self_path: str
) -> None:
    for name, owner in owners.items():
        if container.id == owner.id:
            message = f"{container.id} is the owner {name}"
            raise ConfigError(message, selector.path, "a container is owner or spot, never both")
    if container.running:
        why = unfit(container, owners.values(), self_path)
        if why is not None:
            raise ConfigError(f"{container.id} {why}", selector.path, "run it without that")


def unfit(container: Container, owners: Iterable[Container], self_path: str = "") -> str | None:
    """Why a running container may not be lent anything, as the end of a sentence; None when it may.

    Args:
        container: the spot container.
        owners: all owners' containers that run.
        self_path: the agent's own cgroup path.
    """
    if container.host_pids:
        # Its processes are not ended with its first one, and its pid namespace is everybody's.
        return "shares the host's pid namespace"
    if container.path in ("", "/"):
        return "has no cgroup of its own"
    if self_path and below(self_path, container.path):
        return "holds this agent"
    for owner in owners:
        if below(owner.path, container.path) or below(container.path, owner.path):
            return f"shares a cgroup with the owner {owner.id}"
    return None


def _chosen(selector: Selector, containers: Iterable[Container]) -> list[Container]:
    return [container for container in containers if selector.matches(container.id, container.labels)]


def snapshots(config: Config, containers: Iterable[Container]) -> tuple[ContainersSeen, ...]:
    """What the containers of this moment mean for each owner, in the order of the configuration."""
    everything = [container for container in containers if container.running]
    owners = {owner.name: _running_owner(owner, everything) for owner in config.owners}
    found = [container for container in owners.values() if container is not None]
    return tuple(_snapshot(owner, owners[owner.name], everything, found) for owner in config.owners)


def _running_owner(owner: OwnerConfig, containers: list[Container]) -> Container | None:
    found = _chosen(owner.container, containers)
    return found[0] if len(found) == 1 else None  # several: nobody knows whose the devices are


def _snapshot(
    owner: OwnerConfig, mine: Container | None, containers: list[Container], owners: list[Container]
) -> ContainersSeen:
    spots: dict[str, SpotContainer] = {}
    taken = {container.id for container in owners}
    for rule in owner.spot:
        for container in _chosen(rule.container, containers):
            if container.id in taken or container.id in spots:
                continue
            why = unfit(container, owners)
            spots[container.id] = SpotContainer(
                container.id, container.cgroup, container.path, rule.devices, why
            )
    seen = OwnerContainer(mine.id, mine.cgroup, mine.path) if mine is not None else None
    return ContainersSeen(owner.name, seen, tuple(spots.values()))
