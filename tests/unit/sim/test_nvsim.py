# SPDX-License-Identifier: Apache-2.0
"""What the helper reads from debugfs, and the words it gives to insmod, from a tree of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim import nvsim
from tests.sim.nvsim import Gpu, Guard, Operation, Process, Sim

FILES = {
    "gpus": "heading\n3 GPU-aa 0000:1b:00.0 1 100 20 5 2 4 97 0 1 0\n",
    "guard": "checks 12\nviolations 1\nlast gpu 0 at 5 ns: pid 4 (x) ran\n",
    "counters": "opens 7\ncloses 5\n",
    "processes": "heading\n0 41 4096 1\n0 42 10 0\n",
    "audit": "heading\n17 1 2 99 -1 0x30000001 0x0 3 4096 22\n",
    "leak": "",
    "block": "",
}


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sim:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(nvsim, "DEBUG", tmp_path)
    return Sim()


def test_everything_is_read(sim: Sim) -> None:
    assert sim.gpus() == [
        Gpu(3, "GPU-aa", "0000:1b:00.0", 1, 100, 20, 5, 2, 4, 97, blocked=False, stuck=True, lost=False)
    ]
    assert sim.guard() == Guard(12, 1, "gpu 0 at 5 ns: pid 4 (x) ran")
    assert sim.counters() == {"opens": 7, "closes": 5}
    assert sim.processes() == [Process(0, 41, 4096, compute=True), Process(0, 42, 10, compute=False)]
    assert sim.audit() == [Operation(17, 1, 2, 99, -1, 0x30000001, 0, 3, 4096, 22)]


def test_a_fault_is_cleared_even_when_the_block_fails(sim: Sim, tmp_path: Path) -> None:
    def fail_inside() -> None:
        with sim.fault("leak", 2, 700):
            assert (tmp_path / "leak").read_text() == "2 700"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert (tmp_path / "leak").read_text() == "2 0"


@pytest.mark.parametrize(
    ("value", "word"), [(3, "3"), (["a", "b"], "a,b"), ((1, 2), "1,2"), ("H100 80GB", '"H100 80GB"')]
)
def test_parameters_become_words_of_insmod(value: object, word: str) -> None:
    assert nvsim._word(value) == word


def test_a_cgroup_is_named_by_path_or_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvsim, "CGROUPS", tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    inode = (tmp_path / "a/b").stat().st_ino
    names: list[Path | str | int] = [inode, "a/b", "/a/b", tmp_path / "a/b", str(tmp_path / "a/b")]
    assert [nvsim.cgroup_id(name) for name in names] == [inode] * 5
