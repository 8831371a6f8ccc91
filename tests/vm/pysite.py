# SPDX-License-Identifier: Apache-2.0
"""The Python dependencies of a guest's own Python, as a read-only disk for /opt/spotgpu/site."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.vm.cache import cached, content_key
from tests.vm.chroot import in_chroot
from tests.vm.host import HARNESS, REPO, HarnessError, run, step
from tests.vm.image import MKE2FS, Image

REQUIREMENTS = HARNESS / "requirements-guest.txt"
CONSTRAINTS = REPO / "constraints.txt"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_RECIPE = 1


@dataclass(frozen=True)
class Site:
    """The dependencies as a folder on the host and as a disk image."""

    folder: Path
    disk: Path


def build_site(image: Image) -> Site:
    """Return the site for the image's Python, making it if it is not cached. Raises HarnessError."""
    if not CONSTRAINTS.exists():
        raise HarnessError(f"{CONSTRAINTS}: not found; it pins the versions of {REQUIREMENTS.name}")
    python = image.guest.python
    key = content_key("site", _RECIPE, python, REQUIREMENTS.read_bytes(), CONSTRAINTS.read_bytes(), PLATFORMS)
    home = cached("site", f"{python}-{key}", lambda folder: _make_site(image, folder))
    return Site(home / "site", home / "site.img")


def _make_site(image: Image, folder: Path) -> None:
    python, site = image.guest.python, folder / "site"
    with step(f"Python {python} dependencies"):
        run(_pip(python, site), log=folder / "pip.log")
        # Compiled by the guest's own Python, at native speed: a guest would spend minutes on it.
        compiler = ["python3", "-m", "compileall", "-q", "-j2", "--invalidation-mode", "unchecked-hash"]
        in_chroot(
            image.tree,
            [*compiler, "/opt/spotgpu/site"],
            binds={"opt/spotgpu/site": site},
            log=folder / "compile.log",
        )
        size_mib = sum(path.stat().st_size + 4096 for path in site.rglob("*") if path.is_file()) // 2**20
        run([*MKE2FS, "-d", site, folder / "site.img", f"{size_mib * 5 // 4 + 16}M"])


def _pip(python: str, site: Path) -> list[str | Path]:
    command: list[str | Path] = [sys.executable, "-m", "pip", "install", "--quiet", "--target", site]
    command += ["--python-version", python, "--implementation", "cp", "--only-binary=:all:"]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    command += ["--no-compile", "--no-warn-script-location", "--root-user-action=ignore"]
    return [*command, "-c", CONSTRAINTS, "-r", REQUIREMENTS]
