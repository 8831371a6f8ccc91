# SPDX-License-Identifier: Apache-2.0
"""Build the kernel modules and native programs for a guest, on the host, inside a chroot of the guest's tree.

`python tests/vm/build.py -k 6.12 W=1` builds with those make variables, uncached, and fails on any warning.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.vm.cache import cached, content_key
from tests.vm.checkout import checkout_files, copy_checkout
from tests.vm.chroot import in_chroot
from tests.vm.guests import GUESTS, find_guest
from tests.vm.host import REPO, CommandFailedError, HarnessError, check_tools, step
from tests.vm.image import Image, build_image

# A compiler's or modpost's warning, whatever the language; gcc colours are off, as the output is no terminal.
_WARNING = re.compile(r"\bwarning:|^WARNING: modpost|^Warning: ", re.IGNORECASE | re.MULTILINE)
# Said of every out-of-tree build where the kernel's own vmlinux is not installed; it warns of nothing in our code.
_NOT_OURS = re.compile(r"the compiler differs from the one used to build the kernel")
_RECIPE = 1


@dataclass(frozen=True)
class Variant:
    """One `make` in one room: `name` is the folder of the results under /opt/spotgpu/build."""

    name: str
    room: str
    outputs: str
    variables: tuple[str, ...] = ()


VARIANTS = (
    Variant("kmod", "kmod", "*.ko"),
    Variant("kmod-selftest", "kmod", "*.ko", ("KHOOK_SELFTEST=1",)),
    Variant("sim", "tests/sim", "build/**/*"),
)


def build_all(image: Image) -> Path:
    """Return a folder with one folder of results for each variant whose room exists. Raises CommandFailedError."""
    key = content_key("build", _RECIPE, image.release, image.tree.parent.name, _sources())
    return cached("build", f"{image.guest.key}-{key}", lambda folder: _build_variants(image, folder))


def build_checked(image: Image, variables: Sequence[str]) -> None:
    """Build every room with `variables`, into nowhere. Raises HarnessError showing each warning."""
    with tempfile.TemporaryDirectory(prefix="spotgpu-build-") as scratch:
        for variant in VARIANTS:
            if not _room_exists(variant):
                continue
            log = _make(image, variant, (*variant.variables, *variables), Path(scratch) / variant.name)
            lines = log.read_text(errors="replace").splitlines()
            warnings = [line for line in lines if _WARNING.search(line) and not _NOT_OURS.search(line)]
            if warnings:
                listing = "\n".join(warnings)
                raise HarnessError(f"{variant.name} on {image.release}: warnings with {variables}\n{listing}")


def _sources() -> list[list[str]]:
    """Return path, mode and content hash of every source of every room."""
    names = sorted({name for variant in VARIANTS for name in checkout_files(variant.room)})
    return [
        [name, oct((REPO / name).stat().st_mode & 0o111), content_key((REPO / name).read_bytes())]
        for name in names
    ]


def _room_exists(variant: Variant) -> bool:
    return (REPO / variant.room / "Makefile").exists()


def _build_variants(image: Image, folder: Path) -> None:
    for variant in VARIANTS:
        if not _room_exists(variant):
            continue
        scratch = folder / f"{variant.name}.src"
        _make(image, variant, variant.variables, scratch)
        _collect(scratch / variant.room, variant.outputs, folder / variant.name)
        shutil.rmtree(scratch)


def _make(image: Image, variant: Variant, variables: Sequence[str], scratch: Path) -> Path:
    """Run make in a copy of the rooms at `scratch`, and return the log."""
    for room in {each.room for each in VARIANTS}:
        copy_checkout(scratch, room)
    log = scratch.parent / f"{variant.name}.log"
    command = ["make", "-C", f"/build/{variant.room}", f"KDIR=/lib/modules/{image.release}/build", *variables]
    with step(f"guest {image.guest.key}: make {variant.name} {' '.join(variables)}".rstrip()):
        try:
            in_chroot(image.tree, command, binds={"build": scratch}, log=log)
        except CommandFailedError as error:
            raise CommandFailedError(f"{variant.name} does not build on {image.release}: {error}") from error
    return log


def _collect(room: Path, pattern: str, target: Path) -> None:
    base = room / pattern.split("/")[0] if "/" in pattern else room
    for path in sorted(room.glob(pattern)):
        if path.is_file() or path.is_symlink():
            place = target / path.relative_to(base)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place, follow_symlinks=False)
    target.mkdir(exist_ok=True)


def main() -> int:
    """Command line: build for the named guests; with make variables, check that nothing warns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", "--kernel", action="append", choices=list(GUESTS), help="guest; default: all")
    parser.add_argument("variables", nargs="*", metavar="NAME=VALUE", help="make variables, such as W=1")
    options = parser.parse_args()
    try:
        check_tools()
        for key in options.kernel or GUESTS:
            image = build_image(find_guest(key))
            if options.variables:
                build_checked(image, options.variables)
            else:
                print(build_all(image))
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
