# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin inside a guest: each report goes to the host at once, so that a crash loses none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

KERNEL_LOG = Path("/dev/kmsg")


class Reporter:
    """Writes one JSON object a line to the events port.

    `{"start": id}`, `{"report": {...}}` (pytest's own serialised form), `{"finish": id, "mark": text}`, and
    `{"allow": regex}` for each line that the tests have added to $RESULTS/allow-console. The mark is on the
    kernel console after all that the test has caused there.
    """

    def __init__(self, config: pytest.Config, port: Path, announced: Path) -> None:
        self._config = config
        # One process at a time may have the port open; unbuffered, for the kernel may die under the next
        # test.
        self._port = port.open("wb", buffering=0)
        self._announced = announced
        self._told = 0
        self._tests = 0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell({"start": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell_announced()
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._tell({"report": data})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tests += 1
        mark = f"spotgpu-vm: end of test {self._tests},"
        KERNEL_LOG.write_text(f"<4>{mark} {nodeid[:200]}\n")
        self._tell({"finish": nodeid, "mark": mark})

    def _tell_announced(self) -> None:
        lines = self._announced.read_text().splitlines() if self._announced.exists() else []
        for line in lines[self._told :]:
            self._tell({"allow": line})
        self._told = len(lines)

    def _tell(self, event: dict[str, object]) -> None:
        self._port.write(json.dumps(event).encode() + b"\n")


def pytest_configure(config: pytest.Config) -> None:
    reporter = Reporter(
        config, Path(os.environ["SPOTGPU_EVENTS"]), Path(os.environ["RESULTS"]) / "allow-console"
    )
    config.pluginmanager.register(reporter, "spotgpu-reporter")
