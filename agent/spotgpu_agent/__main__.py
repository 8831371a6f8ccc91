# SPDX-License-Identifier: Apache-2.0
"""`spotgpu agent`: puts the parts together, and ends with one clear error when they don't fit."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spotgpu import __version__
from spotgpu.errors import SpotgpuError
from spotgpu_agent import config as configuration
from spotgpu_agent import logs

if TYPE_CHECKING:
    from spotgpu_agent.clock import Clock
    from spotgpu_agent.config import Config
    from spotgpu_agent.metrics import Metrics
    from spotgpu_agent.runner import Runner

_log = logging.getLogger(__name__)


def run_agent(path: Path, *, log_level: str = "info", check: bool = False) -> int:
    """Run the agent until SIGTERM or SIGINT.

    Args:
        path: the configuration file.
        log_level: debug, info, warning or error.
        check: only look whether it could start, and arm nothing.

    Returns:
        The exit status: 0 after a signal or a good check, 1 when something failed while it ran.

    Raises:
        SpotgpuError: it can't start; UsageError (exit status 2) when the input or the node is wrong.
    """
    config = configuration.load(path)
    logs.setup(log_level)
    if check:
        asyncio.run(_check(config))
        print(f"{path}: good for this node")
        return 0
    return asyncio.run(_serve(config))


async def _check(config: Config) -> None:
    from spotgpu_agent import startup, state
    from spotgpu_agent.clock import Clock

    async with startup.opened(config, Clock(), lambda: None):
        state.load(config.state_dir)


async def _serve(config: Config) -> int:
    # Heavy imports, after the configuration was found good and before anything is armed.
    from spotgpu_agent import startup, state, telemetry
    from spotgpu_agent.clock import Clock
    from spotgpu_agent.metrics import Metrics
    from spotgpu_agent.runner import Runner

    clock = Clock()
    metrics = Metrics(clock, __version__)
    async with startup.opened(config, clock, metrics.nvml_abandoned) as node:
        saved, says = state.load(config.state_dir)
        _log.info(says)
        exporters = telemetry.setup(config.traces, config.node, __version__)
        try:
            return await _run(config, Runner(node, saved, metrics, clock), metrics, clock)
        finally:
            await asyncio.to_thread(exporters.shutdown)


async def _run(config: Config, runner: Runner, metrics: Metrics, clock: Clock) -> int:
    from spotgpu_agent.admin import AdminSocket
    from spotgpu_agent.http import HttpServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    names = [owner.name for owner in config.owners]
    admin = AdminSocket(
        config.run_dir,
        names,
        runner.full_status,
        runner.dispatch,
        lambda command: metrics.event("admin", command),
    )
    http = HttpServer(config.listen, metrics.registry, lambda: None, runner.why_not_ready, runner.status)
    for owner in config.owners:
        for device in owner.devices:
            metrics.device(device, "active", owner.name)
            metrics.device_healthy(device, healthy=True)
    await admin.start()
    try:
        await http.start()
        await runner.run(stop, _ready)
    except ExceptionGroup as group:
        raise _only(group) from group
    finally:
        await http.stop()
        await admin.stop()
    _log.info("stopped; the kernel keeps the watches and leases for the next agent")
    return 0


def _only(group: ExceptionGroup[Exception]) -> Exception:
    """The first error that a person can act on, if all are of that kind; else the group, which is a bug."""
    ours, others = group.split(SpotgpuError)
    if ours is None or others is not None:
        return group
    first: Exception = ours
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first


def _ready() -> None:
    # What lives now lives long: the collector need not look at it again in the middle of a hand-back.
    gc.collect()
    gc.freeze()
    _log.info("ready")


def main() -> None:
    """`python -m spotgpu_agent ...` is `spotgpu agent ...`."""
    from spotgpu.cli import run

    sys.exit(run(["agent", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
