# SPDX-License-Identifier: Apache-2.0
"""Life with a shell in QEMU's place: its ports, its limits, and that it never outlives us."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.vm import life
from tests.vm.host import REPO
from tests.vm.life import Ended, Life, Tail


def live(out_dir: Path, script: str, **options: Any) -> Ended:
    defaults: dict[str, Any] = {"timeout_s": 20, "beats": True, "stream": False, "interactive": False}
    for port in ("control.log", "events.log"):
        (out_dir / port).unlink(missing_ok=True)
    watcher = Life("6.12", out_dir, **{**defaults, **options})
    return watcher.watch(["sh", "-c", f"cd {out_dir}; {script}"])


def test_the_status_is_the_guest_s_and_output_is_kept(tmp_path: Path) -> None:
    ended = live(tmp_path, "echo job 1.0 >>control.log; echo hello; echo exit 3 >>control.log")
    assert ended == Ended(3, None)
    assert (tmp_path / "job.log").read_text() == "hello\n"


def test_an_end_without_a_status_is_lost(tmp_path: Path) -> None:
    assert "before the job began" in str(live(tmp_path, "true").lost)
    assert live(tmp_path, "echo job 1.0 >>control.log").lost == "kernel panic or reset"


def test_qemu_s_own_failure_is_told_with_its_words(tmp_path: Path) -> None:
    assert "no such device" in str(live(tmp_path, "echo no such device >&2; exit 1").lost)


def test_the_limit_ends_the_guest(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = live(tmp_path, "echo job 1.0 >>control.log; exec sleep 60", timeout_s=0.5)
    assert ended.lost == "exceeded its limit of 0 s"
    assert time.monotonic() - began < 5


def test_a_guest_that_does_not_boot_or_falls_silent_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "BOOT_LIMIT_S", 2.0)
    monkeypatch.setattr(life, "SILENCE_LIMIT_S", 2.0)
    assert "did not boot" in str(live(tmp_path, "exec sleep 60").lost)
    assert "silent" in str(live(tmp_path, "echo job 1.0 >>control.log; exec sleep 60").lost)
    beating = "echo job 1.0 >>control.log; for i in 1 2 3 4 5 6; do sleep 0.5; echo beat >>control.log; done"
    assert live(tmp_path, f"{beating}; echo exit 0 >>control.log") == Ended(0, None)


def test_a_job_ended_by_the_guest_for_its_limit_is_lost_and_keeps_its_status(tmp_path: Path) -> None:
    ended = live(
        tmp_path, "echo job 1.0 >>control.log; echo late 5 >>control.log; echo exit 143 >>control.log"
    )
    assert ended.status == 143
    assert "exceeded its limit" in str(ended.lost)


def test_events_come_as_whole_lines(tmp_path: Path) -> None:
    events: list[str] = []
    live(
        tmp_path,
        "printf 'one\\ntw' >>events.log; sleep 0.5; printf 'o\\n' >>events.log",
        on_event=events.append,
    )
    assert events == ["one", "two"]


def test_stop_ends_the_guest(tmp_path: Path) -> None:
    assert live(tmp_path, "exec sleep 60", stop=lambda: "enough").lost == "enough"


def test_a_tail_gives_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_text("one\ntwo\nthr")
    assert tail.lines() == ["one", "two"]
    path.write_text("one\ntwo\nthree\n")
    assert tail.lines() == ["three"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_guest_outlives_its_host_process(tmp_path: Path, number: signal.Signals) -> None:
    program = f"""
import signal
from pathlib import Path
from tests.vm.life import Life
# A shell starts what it runs in the background with SIGINT ignored, and so would Python.
signal.signal(signal.SIGINT, signal.default_int_handler)
life = Life("6.12", Path("{tmp_path}"), timeout_s=60, beats=False, stream=False, interactive=False)
life.watch(["sh", "-c", "echo $$ > {tmp_path}/pid; exec sleep 60"])
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=REPO, stderr=subprocess.DEVNULL)
    pid_file = tmp_path / "pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    guest = Path("/proc") / pid_file.read_text().strip()
    assert guest.exists()
    process.send_signal(number)
    process.wait(timeout=10)
    wait_for(lambda: not guest.exists() or "Z" in (guest / "stat").read_text().split()[2])


def wait_for(condition: Any, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
