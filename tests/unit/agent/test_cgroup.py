# SPDX-License-Identifier: Apache-2.0
"""Cgroup paths and files, on a fake tree; killing and emptiness need a kernel and are guest tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotgpu_agent.cgroup import check_unified, container_path, id_of, kill, path_of, terminate
from spotgpu_agent.errors import PlatformError


@pytest.mark.parametrize(
    ("path", "wanted", "expected"),
    [
        ("/default/owner", "/default/owner", "/default/owner"),
        ("/default/owner/init.scope", "/default/owner", "/default/owner"),
        ("/kubepods.slice/cri-containerd-ab.scope", "kubepods.slice:cri-containerd:ab", None),
        (
            "/kubepods.slice/cri-containerd-ab.scope/system.slice/x.service",
            "kubepods.slice:cri-containerd:ab",
            "/kubepods.slice/cri-containerd-ab.scope",
        ),
        ("/init", "/default/owner", ""),
        ("/user.slice/session", "kubepods.slice:cri-containerd:ab", ""),
        ("/default/owner", "", "/default/owner"),
    ],
)
def test_the_cgroup_of_a_whole_container(path: str, wanted: str, expected: str | None) -> None:
    assert container_path(path, wanted) == (path if expected is None else expected)


def test_ids_and_paths_of_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert id_of("/a", tmp_path) == (tmp_path / "a").stat().st_ino
    assert id_of("/b", tmp_path) == 0
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("1:name=x:/v1\n0::/default/x\n")
    assert path_of(7, tmp_path) == "/default/x"
    assert path_of(8, tmp_path) == ""


def test_killing_writes_the_one_file_and_a_cgroup_that_is_gone_is_empty(tmp_path: Path) -> None:
    (tmp_path / "spot").mkdir()
    (tmp_path / "spot" / "cgroup.kill").write_text("")
    kill("/spot", tmp_path)
    assert (tmp_path / "spot" / "cgroup.kill").read_text() == "1"
    kill("/gone", tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "cgroup.kill").mkdir()
    with pytest.raises(IsADirectoryError):
        kill("/bad", tmp_path)


@pytest.mark.parametrize("path", ["", "/", path_of(os.getpid())])
def test_the_agent_never_kills_itself(path: str, tmp_path: Path) -> None:
    for act in (kill, terminate):
        with pytest.raises(PermissionError, match="holds the agent itself"):
            act(path, tmp_path)


def test_a_node_without_unified_cgroups_or_without_kill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="cgroup v2") as caught:
        check_unified(tmp_path)
    assert caught.value.remedy
    (tmp_path / "cgroup.controllers").write_text("cpu")
    check_unified(tmp_path)
    (tmp_path / "old").mkdir()
    with pytest.raises(PlatformError, match=r"no cgroup\.kill"):
        check_unified(tmp_path)
