# SPDX-License-Identifier: Apache-2.0
"""The root of a guest: a tree made by mmdebstrap, and the image, kernel and initramfs made from the tree."""

from __future__ import annotations

import lzma
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.vm import apt
from tests.vm.cache import cached, content_key
from tests.vm.guests import Guest
from tests.vm.host import HARNESS, HarnessError, run, step
from tests.vm.initramfs import BOOT_MODULES, make_initramfs

IMAGE_SIZE = "6G"  # sparse: what is not written takes no room on the host
# No journal and no checksums: the image is thrown away after each boot, and both cost time under emulation.
MKE2FS = ("mke2fs", "-q", "-t", "ext4", "-m", "0", "-O", "^has_journal,^metadata_csum", "-F")
# Folders that the harness mounts things on, in the guest and in the build chroot.
MOUNT_POINTS = ("src", "results", "build", "opt/spotgpu/site", "opt/spotgpu/build")
_NOT_NEEDED = ("man", "locale", "doc", "info", "lintian", "bash-completion")
# Raise it when the recipe below changes what it makes.
_RECIPE = 1


@dataclass(frozen=True)
class Image:
    """A guest's root, ready to boot: `tree` on the host, and what QEMU takes."""

    guest: Guest
    tree: Path
    disk: Path
    kernel: Path
    initramfs: Path
    release: str


def build_image(guest: Guest) -> Image:
    """Return the guest's image, making what is not cached yet. Raises HarnessError or CommandFailedError."""
    version = apt.kernel_version(guest)
    tree_key = content_key("tree", _RECIPE, asdict(guest), version)
    home = cached("vm", f"{guest.key}-{tree_key}", lambda folder: _make_root(guest, folder))
    tree = home / "tree"
    release = kernel_release(tree, guest)
    script = (HARNESS / "guest/initramfs.sh").read_bytes()
    source = (HARNESS / "initramfs.py").read_bytes()
    boot_key = content_key("boot", tree_key, BOOT_MODULES, script, source)
    boot = cached(
        "vm", f"{guest.key}-boot-{boot_key}", lambda folder: _make_boot(tree, release, script, folder)
    )
    return Image(guest, tree, home / "root.img", boot / "vmlinux", boot / "initramfs", release)


def kernel_release(tree: Path, guest: Guest) -> str:
    """Return the kernel release installed in `tree`. Raises HarnessError unless it is one, as described."""
    releases = [path.name for path in (tree / "lib/modules").iterdir()]
    if len(releases) != 1 or not releases[0].startswith(guest.kernel_prefix):
        raise HarnessError(f"guest {guest.key}: expected one {guest.kernel_prefix}* kernel, found {releases}")
    return releases[0]


def _make_root(guest: Guest, folder: Path) -> None:
    tree = folder / "tree"
    with step(f"guest {guest.key}: root tree of Debian {guest.release} by mmdebstrap"):
        # INITRD=No: Debian's kernel hook makes no initrd, since ours is used.
        run(_mmdebstrap(guest, tree, folder), log=folder / "mmdebstrap.log", env={"INITRD": "No"})
    for mount_point in MOUNT_POINTS:
        (tree / mount_point).mkdir(parents=True)
    with step(f"guest {guest.key}: root image"):
        disk = folder / "root.img"
        run([*MKE2FS, "-d", tree, disk, IMAGE_SIZE])


def _mmdebstrap(guest: Guest, tree: Path, folder: Path) -> list[str | Path]:
    command: list[str | Path] = [
        "nice",
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
    ]
    command += ["--architectures=amd64", "--dpkgopt=force-unsafe-io"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _NOT_NEEDED]
    command += [f"--aptopt={option}" for option in apt.honoured_options()]
    preferences = apt.preferences(guest)
    if preferences:
        (folder / "preferences").write_text(preferences)
        command.append(f"--setup-hook=install -D -m644 {folder}/preferences $1/etc/apt/preferences.d/kernel")
    command += [f"--include={','.join(guest.packages)}", guest.release, tree]
    return command + list(apt.source_lines(guest, apt.host_mirrors()))


def _make_boot(tree: Path, release: str, script: bytes, folder: Path) -> None:
    with step(f"kernel {release}: unpacked kernel and initramfs"):
        (folder / "initramfs").write_bytes(make_initramfs(tree, release, script))
        unpack_kernel(tree / "boot" / f"vmlinuz-{release}", folder / "vmlinux")


def unpack_kernel(bzimage: Path, target: Path) -> None:
    """Write to `target` the ELF kernel inside `bzimage`, or `bzimage` itself if it unpacks quickly.

    QEMU starts an ELF kernel by its PVH note, which saves unpacking it under emulation: that takes seconds
    for xz and zstd, and next to nothing for lz4. Offsets are from Documentation/arch/x86/boot.rst:
    setup_sects 0x1f1, payload_offset 0x248, payload_length 0x24c; the payload ends in four bytes that are not
    part of the stream.
    """
    data = bzimage.read_bytes()
    setup_sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    payload = data[begin : begin + length - 4]
    if payload.startswith(b"\xfd7zXZ"):
        target.write_bytes(lzma.LZMADecompressor().decompress(payload))
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        packed = target.with_suffix(".zst")
        packed.write_bytes(payload)
        run(["zstd", "-q", "-d", "--rm", packed, "-o", target])
    else:
        target.write_bytes(data)
