# SPDX-License-Identifier: Apache-2.0
"""A small initramfs: busybox, the modules that reach the root disk, and one script.

Debian's own initrd runs udev and fifty scripts, which takes half a minute under software emulation; this one
takes a second. The archive format is "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of
the kernel).
"""

from __future__ import annotations

import lzma
import stat
from pathlib import Path

# What the harness itself needs before there is a root: disks, the root's file system, the overlay over the
# checkout.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "ext4", "overlay")
_ALIGN = 4


class Archive:
    """A cpio archive in the making; `bytes()` ends it."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._inode = 0

    def add(self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        """Append one entry; `mode` includes the file type, `device` is for device nodes."""
        self._inode += 1
        encoded = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
        self._data += b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        self._pad()
        self._data += content
        self._pad()

    def folder(self, name: str) -> None:
        """Append a folder."""
        self.add(name, stat.S_IFDIR | 0o755)

    def __bytes__(self) -> bytes:
        done = Archive()
        done._data, done._inode = bytearray(self._data), self._inode
        done.add("TRAILER!!!", 0)
        return bytes(done._data)

    def _pad(self) -> None:
        self._data += b"\0" * (-len(self._data) % _ALIGN)


def load_order(wanted: tuple[str, ...], dependencies: dict[str, list[str]]) -> list[str]:
    """Return the modules to load, each after what it needs.

    `dependencies` maps a module's name to what it depends on; a wanted module that is not there is built into
    the kernel and left out.
    """
    order: list[str] = []

    def visit(name: str) -> None:
        for needed in dependencies[name]:
            visit(needed)
        if name not in order:
            order.append(name)

    for name in wanted:
        if name in dependencies:
            visit(name)
    return order


def make_initramfs(tree: Path, release: str, script: bytes) -> bytes:
    """Return the initramfs for kernel `release` of the root tree, with `script` as its /init."""
    modules = tree / "lib/modules" / release
    paths = _module_paths(modules)
    names = {name: [_name(path) for path in needs] for name, (_, needs) in paths.items()}
    archive = Archive()
    for folder in ("bin", "dev", "lib", "root"):
        archive.folder(folder)
    # The kernel opens this for init's first descriptors, before anything is mounted.
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    archive.add("bin/busybox", stat.S_IFREG | 0o755, (tree / "bin/busybox").read_bytes())
    order = load_order(BOOT_MODULES, names)
    for name in order:
        archive.add(f"lib/{name}.ko", stat.S_IFREG | 0o644, _module_bytes(modules / paths[name][0]))
    archive.add("lib/order", stat.S_IFREG | 0o644, "".join(f"{name}\n" for name in order).encode())
    archive.add("init", stat.S_IFREG | 0o755, script)
    return bytes(archive)


def _name(path: str) -> str:
    return Path(path).name.split(".")[0].replace("-", "_")


def _module_paths(modules: Path) -> dict[str, tuple[str, list[str]]]:
    """Read modules.dep: module name -> (its path, the paths it depends on)."""
    found = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        found[_name(path)] = (path, needs.split())
    return found


def _module_bytes(path: Path) -> bytes:
    """Return a module uncompressed: unpacking .xz under emulation costs more than reading it."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data
