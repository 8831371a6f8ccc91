# SPDX-License-Identifier: Apache-2.0
"""What a newcomer types works: `make demo`, and the node of `make shell`, on one kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.vm.guests import find_guest
from tests.vm.host import REPO
from tests.vm.run import boot

KERNEL = "6.12"
LIMIT_S = 420.0
# It may wait for other guests on this host.
WAIT_S = 1500.0


def test_the_demo_shows_one_hand_back() -> None:
    page = REPO / "build" / "demo" / "handback.html"
    page.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "tests/demo/run.py", "-k", KERNEL],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for sentence in ("is held at ioctl", "the devices are free: release", "ok 1000 elements", "owner waited"):
        assert sentence in done.stdout
    assert "owner.hold" in page.read_text()


def test_the_shells_node_lends_and_gives_back(tmp_path: Path) -> None:
    script = "python3 tests/demo/shell.py && owner-back && spotgpu trace --last 1"
    result = boot(find_guest(KERNEL), script, out_dir=tmp_path, timeout_s=LIMIT_S, stream=False)
    assert (result.status, result.faults) == (0, ())
    said = (tmp_path / "job.log").read_text(errors="replace")
    assert "ok 1000 elements" in said
    assert "released: the device was proven free" in said
