# SPDX-License-Identifier: Apache-2.0
"""The harness against a real guest, on one kernel: what it brings back, what it says of one that dies."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.vm.checkout import copy_checkout
from tests.vm.guests import find_guest
from tests.vm.host import REPO
from tests.vm.pytest_host import chosen_kernels
from tests.vm.run import FAULT_STATUS, LOST_STATUS, LostGuest, Result, boot

LIMIT_S = 150.0
# Of a whole command: it may wait for other guests on this host.
WAIT_S = 1200.0


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
    looks: list[float] = []
    with pytest.raises(LostGuest, match="exceeded its limit") as caught:
        run(
            kernel,
            tmp_path,
            "echo kept >$RESULTS/file; exec sleep 600",
            timeout_s=60,
            stop=lambda: looks.append(time.monotonic()),
        )
    assert looks[-1] - looks[0] < 61
    assert (caught.value.results_dir / "file").read_text() == "kept\n"
    assert "Show Blocked State" in caught.value.console_path.read_text()


GUEST_TESTS = """
import os
import time
from pathlib import Path

import pytest


def say(text: str) -> None:
    Path("/dev/kmsg").write_text(text)


def test_passes(): pass


def test_fails():
    print("captured words")
    assert "left" == "right"


def test_skips(): pytest.skip("why not")


def test_complains(): say("<3>BUG: under a test")


def test_announces():
    with open(os.environ["RESULTS"] + "/allow-console", "a") as announced:
        announced.write("BUG: announced")
    say("<3>BUG: announced")


@pytest.mark.soak
def test_soaks(): pass


@pytest.mark.own_guest
def test_alone(): assert not Path("/src/crumb").exists()


def test_crashes():
    Path("/src/crumb").touch()
    Path("/proc/sysrq-trigger").write_text("c")
    time.sleep(60)


def test_after(): pass
"""
OUTCOMES = {
    "test_passes": "PASSED",
    "test_fails": "FAILED",
    "test_skips": "FAILED",
    "test_complains": "PASSED ERROR",
    "test_announces": "PASSED",
    "test_crashes": "ERROR LOST",
    "test_after": "LOST",
    "test_alone": "PASSED",
}


def test_guest_tests_are_reported_one_by_one_whatever_becomes_of_the_guest(
    kernel: str, tmp_path: Path
) -> None:
    copy_checkout(tmp_path)
    shutil.rmtree(tmp_path / "tests/guest")
    (tmp_path / "tests/guest").mkdir()
    (tmp_path / "tests/guest/test_it.py").write_text(GUEST_TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "tests/guest", "--guest-build", "none", "--kernel", kernel],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    seen: dict[str, list[str]] = {}
    for name, word in re.findall(r"::(test_\w+)\[[\w.]+\] ([A-Z]+) +\[", done.stdout):
        seen.setdefault(name, []).append(word)
    assert {name: " ".join(words) for name, words in seen.items()} == OUTCOMES
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    for words in ("captured words", "assert 'left' == 'right'", "skipped in the guest: Skipped: why not"):
        assert words in done.stdout
    assert "lost: not run; the guest was lost while tests/guest/test_it.py::test_crashes ran" in done.stdout
    assert "BUG: under a test" in done.stdout


def command(kernel: str, out_dir: Path, script: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "tests/vm/run.py", "-k", kernel, "--out", str(out_dir), "--build"]
    return subprocess.run(
        [*line, "--", "sh", "-c", script],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )


def test_a_panic_is_a_lost_guest_with_its_console(kernel: str, tmp_path: Path) -> None:
    lost = command(kernel, tmp_path, "echo before; sleep 1; echo c >/proc/sysrq-trigger; sleep 60")
    assert (lost.returncode, lost.stdout) == (LOST_STATUS, "before\n")
    assert "lost: guest lost: kernel panic" in lost.stderr
    assert "sysrq_handle_crash" in lost.stderr


def test_a_fault_fails_a_job_that_succeeded(kernel: str, tmp_path: Path) -> None:
    fault = command(kernel, tmp_path, "echo '<3>BUG: shown' >/dev/kmsg; echo output")
    assert (fault.returncode, fault.stdout) == (FAULT_STATUS, "output\n")
    assert "BUG: shown" in fault.stderr
