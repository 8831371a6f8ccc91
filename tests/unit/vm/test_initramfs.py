# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import lzma
import stat
import subprocess
from pathlib import Path

import pytest

from tests.vm.initramfs import Archive, load_order, make_initramfs


def test_a_module_loads_after_what_it_needs_and_once() -> None:
    needs = {"a": ["b", "c"], "b": ["c"], "c": [], "d": ["c"], "other": []}
    assert load_order(("a", "d", "built-in"), needs) == ["c", "b", "a", "d"]


def test_busybox_reads_the_archive(tmp_path: Path) -> None:
    archive = Archive()
    archive.folder("bin")
    archive.add("bin/tool", stat.S_IFREG | 0o755, b"hello")
    archive.add("odd", stat.S_IFREG | 0o644, b"12345")
    subprocess.run(["busybox", "cpio", "-i"], input=bytes(archive), cwd=tmp_path, check=True)
    assert (tmp_path / "bin/tool").read_bytes() == b"hello"
    assert (tmp_path / "bin/tool").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "odd").read_bytes() == b"12345"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    modules = tmp_path / "lib/modules/6.0"
    (modules / "kernel").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/busybox").write_bytes(b"busybox")
    (modules / "kernel/virtio_blk.ko.xz").write_bytes(lzma.compress(b"block"))
    (modules / "kernel/ext4.ko").write_bytes(b"ext4")
    (modules / "kernel/jbd2.ko").write_bytes(b"jbd2")
    (modules / "modules.dep").write_text(
        "kernel/virtio_blk.ko.xz:\nkernel/ext4.ko: kernel/jbd2.ko\nkernel/jbd2.ko:\n"
    )
    return tmp_path


def test_the_initramfs_holds_unpacked_modules_in_load_order(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    data = make_initramfs(tree, "6.0", b"#!script")
    # The console's device node needs root; everything else must be there for anyone.
    subprocess.run(["busybox", "cpio", "-i"], input=data, cwd=out, check=False)
    assert (out / "lib/order").read_text() == "virtio_blk\njbd2\next4\n"
    assert (out / "lib/virtio_blk.ko").read_bytes() == b"block"
    assert (out / "init").read_bytes() == b"#!script"
