# SPDX-License-Identifier: Apache-2.0
"""The rooms of the checkout: who may import whom, and what a wheel of them holds."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
ROOMS = (
    "spotgpu",
    "kmod/spotgpu_khook",
    "probes/spotgpu_probes",
    "agent/spotgpu_agent",
    "runtime/spotgpu_runtime",
    "scheduler/spotgpu_scheduler",
)


def lint_imports(top: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(top), *(str(top / room.split("/")[0]) for room in ROOMS[1:])]
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=top,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(name="copy")
def _copy(tmp_path: Path) -> Path:
    """The rooms' own files, to be broken."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", "pyproject.toml", *ROOMS]
    files = subprocess.run(listed, cwd=TOP, check=True, capture_output=True, text=True).stdout
    subprocess.run(
        ["tar", "-c", "-T", "-", "-f", str(tmp_path / "copy.tar")],
        cwd=TOP,
        check=True,
        input=files,
        text=True,
    )
    subprocess.run(["tar", "-x", "-f", "copy.tar"], cwd=tmp_path, check=True)
    return tmp_path


def test_rooms_keep_their_direction() -> None:
    done = lint_imports(TOP)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("kmod/spotgpu_khook/__init__.py", "spotgpu_probes"),
        ("probes/spotgpu_probes/__init__.py", "spotgpu_agent"),
        ("scheduler/spotgpu_scheduler/__init__.py", "spotgpu_agent"),
        ("runtime/spotgpu_runtime/__init__.py", "spotgpu_khook"),
        ("spotgpu/names.py", "spotgpu_khook"),
    ],
)
def test_an_import_upwards_is_found(copy: Path, module: str, forbidden: str) -> None:
    """The contract can fail: each forbidden import breaks it."""
    with (copy / module).open("a") as file:
        file.write(f"\nimport {forbidden}  # noqa\n")
    assert lint_imports(copy).returncode == 1


def test_the_wheel_holds_every_room_and_the_header(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=TOP, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for room in ROOMS:
        assert f"{Path(room).name}/__init__.py" in names
    assert "spotgpu_khook/khook.h" in names
