# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.vm.cache import UNUSED_FOR_S, cached, content_key
from tests.vm.host import REPO


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPOTGPU_CACHE", str(tmp_path))
    return tmp_path


def fill(folder: Path) -> None:
    (folder / "file").write_text("content")


def test_key_depends_on_every_part_and_their_borders() -> None:
    keys = {
        content_key(*parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], ["ab", "c"], [["ab"], "c"], [b"abc"])
    }
    assert len(keys) == 5
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})


def test_an_entry_is_made_once(cache: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        fill(folder)

    assert cached("kind", "entry", make) == cached("kind", "entry", make) == cache / "kind/entry"
    assert (cache / "kind/entry/file").read_text() == "content"
    assert len(made) == 1


def test_a_failure_leaves_nothing_behind(cache: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        cached("kind", "entry", fail)
    assert [path.name for path in (cache / "kind").iterdir()] == ["entry.lock"]
    assert cached("kind", "entry", fill).is_dir()


def test_what_a_killed_run_left_is_removed(cache: Path) -> None:
    left = cache / "kind/entry.tmp-abc"
    left.mkdir(parents=True)
    fill(left)
    cached("kind", "entry", fill)
    assert not left.exists()


def test_entries_unused_for_long_are_forgotten_when_one_is_made(cache: Path) -> None:
    for name in ("old", "used"):
        cached("kind", name, fill)
    long_ago = time.time() - UNUSED_FOR_S - 60
    for name in ("old", "used"):
        os.utime(cache / "kind" / name, (long_ago, long_ago))
    cached("kind", "used", fill)
    cached("kind", "new", fill)
    assert sorted(path.name for path in (cache / "kind").iterdir() if path.is_dir()) == ["new", "used"]


def test_two_runs_at_once_make_one_whole_entry(cache: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from tests.vm.cache import cached
def make(folder):
    with Path(sys.argv[1]).open("a") as log:
        log.write("made\\n")
    for number in range(20):
        (folder / str(number)).write_text("x")
        time.sleep(0.01)
print(len(list(cached("kind", "entry", make).iterdir())))
"""
    log = cache / "log"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(log)], cwd=REPO, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    assert [run.communicate(timeout=60)[0].strip() for run in runs] == ["20"] * 4
    assert log.read_text() == "made\n"
