#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A vendor device plugin for `nvidia.com/gpu`, for machines whose GPUs are simulated. Usable on its own.

    PYTHONPATH=. python tests/sim/device_plugin.py --library-dir build/sim/lib --cdi-dir /var/run/cdi

Registers with kubelet and serves its device plugin API (servicer.py) until SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pynvml

from tests.sim.cdi import specification, write_specification
from tests.sim.inventory import HealthWatch, read_inventory
from tests.sim.offer import Offer
from tests.sim.registration import PluginError, Service

KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")
WATCH_S = 1.0

log = logging.getLogger("device-plugin")


def serve(offer: Offer, kubelet_dir: Path, stop: threading.Event) -> None:
    """Serve until `stop` is set. Raises PluginError, NVMLError."""
    service = Service(offer, kubelet_dir)

    def on_sick(uuid: str, why: str) -> None:
        log.warning("%s: %s: shown as Unhealthy until this plugin is started again", uuid, why)
        service.plugin.set_sick(uuid)

    health = HealthWatch(offer.cards, on_sick)
    health.start()
    try:
        while True:
            service.tend()
            if stop.wait(WATCH_S):
                return
    finally:
        health.end()
        service.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--resource", default="nvidia.com/gpu")
    parser.add_argument("--kubelet-dir", type=Path, default=KUBELET_DIR)
    parser.add_argument("--library-dir", type=Path, help="mount the libraries of this folder into containers")
    parser.add_argument(
        "--cdi-dir", type=Path, help="write a CDI specification there and answer with CDI names"
    )
    parser.add_argument("--cdi-kind", default="nvidia.com/gpu")
    return parser


def _start(options: argparse.Namespace, stop: threading.Event) -> None:
    pynvml.nvmlInit()
    offer = Offer(
        options.resource,
        tuple(read_inventory()),
        options.library_dir,
        options.cdi_kind if options.cdi_dir else None,
    )
    if options.cdi_dir:
        content = specification(options.cdi_kind, offer.cards, offer.libraries())
        log.info("wrote %s", write_specification(options.cdi_dir, content))
    serve(offer, options.kubelet_dir, stop)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Exit status 1: it had to give up; 2: it could not start."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if not options.kubelet_dir.is_dir():
        print(
            f"device-plugin: --kubelet-dir {options.kubelet_dir}: no such folder; is kubelet installed?",
            file=sys.stderr,
        )
        return 2
    try:
        _start(options, stop)
    except pynvml.NVMLError as error:
        print(f"device-plugin: NVML: {error}: is the driver loaded?", file=sys.stderr)
        return 2
    except PluginError as error:
        print(f"device-plugin: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
