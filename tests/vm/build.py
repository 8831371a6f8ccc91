# SPDX-License-Identifier: Apache-2.0
"""Build the kernel modules and native programs for a guest, on the host, inside a chroot of the guest's tree.

`python tests/vm/build.py -k 6.12 W=1` builds with those make variables and fails on any warning.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.vm.cache import cached, content_key
from tests.vm.checkout import checkout_files, copy_checkout
from tests.vm.chroot import in_chroot
from tests.vm.guests import GUESTS, find_guest
from tests.vm.host import REPO, CommandFailedError, HarnessError, check_tools, step
from tests.vm.image import Image, build_image

CHECK_VARIABLES = ("W=1", "C=1")
# A warning of gcc, sparse or modpost.
_WARNING = re.compile(r"\bwarning:|^WARNING: modpost|^Warning: ", re.IGNORECASE | re.MULTILINE)
# Said by Kbuild when the kernel package was built with another patch level of gcc; nothing in our code.
_NOT_OURS = re.compile(r"the compiler differs from the one used to build the kernel")
_RECIPE = 1


@dataclass(frozen=True)
class Variant:
    """One `make` in one room; `name` is the folder of its results under /opt/spotgpu/build.

    Results are the files that match `outputs` below `results` (relative to the room). `sources` are the
    folders of the checkout that it is made from.
    """

    name: str
    room: str
    sources: tuple[str, ...]
    results: str
    outputs: tuple[str, ...]
    variables: tuple[str, ...] = ()


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("kmod", "kmod", ("kmod",), ".", ("*.ko",)),
        Variant("kmod-selftest", "kmod", ("kmod",), ".", ("*.ko",), ("KHOOK_SELFTEST=1",)),
        Variant("sim", "tests/sim", ("tests/sim",), "build", ("*.ko", "bin/*", "lib/*")),
    )
}


def build_all(image: Image, names: Sequence[str] = tuple(VARIANTS)) -> dict[str, Path]:
    """Return variant -> folder of results, for those named whose room exists. Raises CommandFailedError."""
    chosen = [variant for name, variant in VARIANTS.items() if name in names]
    return {
        variant.name: _cached_build(image, variant, f"{image.guest.key}-{variant.name}")
        for variant in chosen
        if _room_exists(variant)
    }


def build_checked(image: Image, variables: Sequence[str]) -> None:
    """Build every room with `variables`, for the warnings alone. Raises HarnessError showing each one.

    What passed is not built again while its sources, the kernel and the variables stay what they were.
    """
    for variant in filter(_room_exists, VARIANTS.values()):
        checked = replace(variant, variables=(*variant.variables, *variables))
        _cached_build(image, checked, f"{image.guest.key}-{variant.name}-checked", _refuse_warnings)


def warnings_in(log: str) -> list[str]:
    """Return the lines of a build's log in which gcc, sparse or modpost warn of our code."""
    return [line for line in log.splitlines() if _WARNING.search(line) and not _NOT_OURS.search(line)]


def _refuse_warnings(variant: Variant, log: Path) -> None:
    warnings = warnings_in(log.read_text(errors="replace"))
    if warnings:
        shown = "\n".join(warnings)
        raise HarnessError(f"{variant.name} with {' '.join(variant.variables)}: warnings\n{shown}")


def _room_exists(variant: Variant) -> bool:
    return (REPO / variant.room / "Makefile").exists()


def _sources(variant: Variant) -> list[list[str]]:
    """Return path, executable bits and content hash of every source of the variant."""
    names = [name for folder in variant.sources for name in checkout_files(folder)]
    return [
        [name, oct((REPO / name).stat().st_mode & 0o111), content_key((REPO / name).read_bytes())]
        for name in names
    ]


def _cached_build(
    image: Image, variant: Variant, name: str, check: Callable[[Variant, Path], None] | None = None
) -> Path:
    """Return the variant's results, from the cache or built; `check` judges the log of a build."""
    key = content_key("build", _RECIPE, image.tree.parent.name, asdict(variant), _sources(variant))

    def make(folder: Path) -> None:
        scratch = folder / "source"
        log = _make(image, variant, scratch)
        if check:
            check(variant, log)
        _collect(scratch / variant.room / variant.results, variant.outputs, folder / "results")
        shutil.rmtree(scratch)

    return cached("build", f"{name}-{key}", make) / "results"


def _make(image: Image, variant: Variant, scratch: Path) -> Path:
    """Run make in a copy of the sources at `scratch`, and return the log."""
    for folder in variant.sources:
        copy_checkout(scratch, folder)
    log = scratch.with_name("make.log")
    command = ["make", f"-j{os.cpu_count()}", "-C", f"/build/{variant.room}"]
    command += [f"KDIR=/lib/modules/{image.release}/build", *variant.variables]
    with step(f"guest {image.guest.key}: make {variant.name} {' '.join(variant.variables)}".rstrip()):
        try:
            in_chroot(image.tree, command, binds={"build": scratch}, log=log)
        except CommandFailedError as error:
            raise CommandFailedError(f"{variant.name} does not build on {image.release}: {error}") from error
    return log


def _collect(results: Path, patterns: Sequence[str], target: Path) -> None:
    target.mkdir()
    for path in sorted(path for pattern in patterns for path in results.glob(pattern)):
        place = target / path.relative_to(results)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place, follow_symlinks=False)


def main() -> int:
    """Command line: build for the named guests; with make variables or --check, fail on whatever warns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", "--kernel", action="append", choices=list(GUESTS), help="guest; default: all")
    parser.add_argument(
        "--check", action="store_true", help="the same as W=1 C=1: gcc's warnings and sparse's"
    )
    parser.add_argument("variables", nargs="*", metavar="NAME=VALUE", help="make variables, such as W=1")
    options = parser.parse_args()
    variables = [*options.variables, *(CHECK_VARIABLES if options.check else ())]
    try:
        check_tools()
        for key in options.kernel or GUESTS:
            image = build_image(find_guest(key))
            if variables:
                build_checked(image, variables)
            else:
                for name, folder in build_all(image).items():
                    print(f"{key} {name} {folder}")
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
