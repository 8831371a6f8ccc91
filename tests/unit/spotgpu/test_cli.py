# SPDX-License-Identifier: Apache-2.0
"""The command as a person runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spotgpu import __version__
from tests.unit.spotgpu.samples import TRACE_ID, hand_back, write

TOP = Path(__file__).resolve().parents[3]
PYTHONPATH = ":".join(str(TOP / room) for room in ("", "kmod", "probes", "agent", "runtime", "scheduler"))


def spotgpu(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "spotgpu", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "PYTHONUTF8": "1", **env},
    )


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write(tmp_path / "traces.jsonl", hand_back("1" * 32), hand_back())


def one_line(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_the_version_is_the_package_s() -> None:
    assert tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["version"] == __version__
    assert spotgpu("version").stdout.startswith(f"spotgpu {__version__} (khook ABI 1, Python 3.")
    assert json.loads(spotgpu("version", "-o", "json").stdout)["spotgpu"] == __version__


def test_start_up_is_lean() -> None:
    code = "import sys\nfrom spotgpu.cli import run\nrun(['version'])\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": PYTHONPATH},
    )
    loaded = set(done.stdout.split())
    heavy = {
        "grpc",
        "opentelemetry",
        "prometheus_client",
        "google",
        "pyroute2",
        "yaml",
        "asyncio",
        "elftools",
        "kubernetes",
    }
    assert not heavy & loaded
    assert not any(name.startswith(("spotgpu_", "spotgpu.report", "spotgpu.waterfall")) for name in loaded)


@pytest.mark.parametrize("command", [(), ("agent",), ("status",), ("doctor",), ("trace",), ("version",)])
def test_help(command: tuple[str, ...]) -> None:
    done = spotgpu(*command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: spotgpu")
    assert not command or "--output" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("dance",),
        ("agent",),
        ("version", "--output", "xml"),
        ("trace", "--last", "0"),
        ("trace", "--last", "x"),
        ("trace", "--width", "-1"),
        ("trace", "abcd", "--last", "2"),
        ("status", "extra"),
        ("trace", "--las", "3"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: tuple[str, ...]) -> None:
    assert "--help" in one_line(spotgpu(*arguments), 2)


def test_trace_draws_the_last_one(traces: Path) -> None:
    done = spotgpu("trace", "--file", traces)
    assert (done.returncode, done.stderr) == (0, "")
    assert TRACE_ID in done.stdout
    assert "1" * 32 not in done.stdout
    assert "owner waited 312 ms" in done.stdout
    assert "\x1b" not in done.stdout  # it is no terminal
    assert "█" in done.stdout


def test_trace_by_id_by_number_and_by_environment(traces: Path) -> None:
    assert "1" * 32 in spotgpu("trace", "1111", "--file", traces).stdout
    both = spotgpu("trace", "--last", "2", SPOTGPU_TRACES=str(traces)).stdout
    assert both.index("1" * 32) < both.index(TRACE_ID)


def test_trace_as_json_has_exact_times(traces: Path) -> None:
    (trace,) = json.loads(spotgpu("trace", "--file", traces, "-o", "json").stdout)["traces"]
    assert trace["total_ns"] == 312_400_000 == sum(trace["breakdown_ns"].values())
    assert len(trace["spans"]) == 8
    assert trace["spans"][0]["parent"] is None


def test_trace_list(traces: Path) -> None:
    first, second = spotgpu("trace", "--list", "--file", traces).stdout.splitlines()[1:]
    assert first.startswith("11111111")
    assert "released" in second
    listed = json.loads(spotgpu("trace", "--list", "--file", traces, "-o", "json").stdout)["traces"]
    assert ["spans" in trace for trace in listed] == [False, False]


def test_trace_as_a_page(traces: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert spotgpu("trace", "--file", traces, "--html", page).stdout == f"{page}\n"
    assert page.read_text().startswith("<!doctype html>")
    assert spotgpu("trace", "--file", traces, "--html", "-").stdout == page.read_text()
    told = json.loads(spotgpu("trace", "--file", traces, "--html", page, "-o", "json").stdout)
    assert told["html"] == str(page)
    assert "--html" in one_line(spotgpu("trace", "--file", traces, "--html", tmp_path / "no" / "page"), 2)


def test_trace_where_only_ascii_can_be_shown(traces: Path) -> None:
    for done in (
        spotgpu("trace", "--file", traces, "--ascii"),
        spotgpu("trace", "--file", traces, PYTHONUTF8="0", PYTHONIOENCODING="ascii"),
    ):
        assert done.returncode == 0
        assert done.stdout.isascii()
        assert "####" in done.stdout


def test_trace_finds_nothing(traces: Path, tmp_path: Path) -> None:
    assert "--list" in one_line(spotgpu("trace", "ffff", "--file", traces), 1)
    assert "TRACE_ID" in one_line(spotgpu("trace", "xx", "--file", traces), 2)
    assert "--file" in one_line(spotgpu("trace", "--file", tmp_path / "none"), 2)
    assert "no such file" in one_line(spotgpu("trace", SPOTGPU_TRACES=str(tmp_path / "none")), 1)
    (tmp_path / "empty").touch()
    assert "no finished trace" in one_line(spotgpu("trace", "--file", tmp_path / "empty"), 1)
    told = json.loads(one_line(spotgpu("trace", "xx", "--file", traces, "-o", "json"), 2))
    assert (told["field"], bool(told["remedy"])) == ("TRACE_ID", True)


def test_a_torn_line_is_said_and_costs_nothing_else(traces: Path) -> None:
    with traces.open("a") as file:
        file.write('{"trace_id":"98')
    done = spotgpu("trace", "--file", traces)
    assert done.returncode == 0
    assert "1 lines of" in done.stderr
    assert "owner waited" in done.stdout


def test_a_reader_that_has_enough(traces: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m spotgpu trace --last 2 --file {traces} | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "PYTHONUTF8": "1"},
    )
    assert done.stderr == ""


def test_status_without_an_agent(tmp_path: Path) -> None:
    done = spotgpu("status", "--socket", tmp_path / "none.sock")
    assert (done.returncode, done.stderr) == (1, "")
    assert "no agent answers" in done.stdout


def test_doctor_in_text_and_json() -> None:
    done = spotgpu("doctor", "-o", "json")
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["ok"] else 1)
    assert {check["status"] for check in told["checks"]} <= {"ok", "warn", "fail"}
    text = spotgpu("doctor").stdout
    assert all(check["name"] in text for check in told["checks"])
    assert "--module" in one_line(spotgpu("doctor", "--module", "/none/khook.ko"), 2)
