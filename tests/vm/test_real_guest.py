# SPDX-License-Identifier: Apache-2.0
"""The harness against a real guest, on one kernel: what it brings back, what it says of one that dies."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.vm.guests import find_guest
from tests.vm.host import REPO
from tests.vm.pytest_host import chosen_kernels
from tests.vm.run import FAULT_STATUS, LOST_STATUS, LostGuest, Result, boot

LIMIT_S = 150.0


@pytest.fixture(scope="module")
def kernel(pytestconfig: pytest.Config) -> str:
    kernels = chosen_kernels(pytestconfig.getoption("--kernel"), {})
    return "6.12" if "6.12" in kernels else kernels[0]


def run(kernel: str, out_dir: Path, script: str, **options: Any) -> Result:
    defaults: dict[str, Any] = {"timeout_s": LIMIT_S, "stream": False, "variants": ()}
    return boot(find_guest(kernel), script, out_dir=out_dir, **{**defaults, **options})


def test_status_output_files_environment_and_faults_come_back(kernel: str, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.write_text("from the host")
    script = """
        echo "$GREETING in $PWD"
        cp /opt/extra $RESULTS/copy
        echo 'WARNING: announced' >>$RESULTS/allow-console
        echo 'WARNING: announced in advance' >/dev/kmsg
        echo 'WARNING: expected' >/dev/kmsg
        for i in $(seq 40); do echo "quiet $i" >/dev/kmsg; done
        echo '<3>BUG: out of the blue' >/dev/kmsg
        exit 42
    """
    result = run(
        kernel,
        tmp_path / "out",
        script,
        env={"GREETING": 'it\'s a "guest"'},
        extra_files={"/opt/extra": extra},
        allow=["WARNING: expected"],
    )
    assert result.status == 42
    assert (tmp_path / "out/job.log").read_text() == 'it\'s a "guest" in /src\n'
    assert (result.results_dir / "copy").read_text() == "from the host"
    assert "Linux version" in (result.results_dir / "dmesg.txt").read_text()
    assert ["BUG: out of the blue" in fault.headline for fault in result.faults] == [True]


def test_a_job_past_its_limit_is_lost_in_time_and_its_files_come_back(kernel: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(LostGuest, match="exceeded its limit") as caught:
        run(kernel, tmp_path, "echo kept >$RESULTS/file; exec sleep 600", timeout_s=60)
    assert time.monotonic() - began < 75
    assert (caught.value.results_dir / "file").read_text() == "kept\n"
    assert "Show Blocked State" in caught.value.console_path.read_text()


def command(kernel: str, out_dir: Path, script: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "tests/vm/run.py", "-k", kernel, "--out", str(out_dir), "--build"]
    return subprocess.run(
        [*line, "--", "sh", "-c", script],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def test_a_panic_is_a_lost_guest_with_its_console(kernel: str, tmp_path: Path) -> None:
    lost = command(kernel, tmp_path, "echo before; echo c >/proc/sysrq-trigger; sleep 60")
    assert (lost.returncode, lost.stdout) == (LOST_STATUS, "before\n")
    assert "lost: guest lost: kernel panic" in lost.stderr
    assert "sysrq_handle_crash" in lost.stderr


def test_a_fault_fails_a_job_that_succeeded(kernel: str, tmp_path: Path) -> None:
    fault = command(kernel, tmp_path, "echo '<3>BUG: shown' >/dev/kmsg; echo output")
    assert (fault.returncode, fault.stdout) == (FAULT_STATUS, "output\n")
    assert "BUG: shown" in fault.stderr
