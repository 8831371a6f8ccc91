# SPDX-License-Identifier: Apache-2.0
"""The read-only disk of one boot: checkout, built modules, the job and the harness's own scripts."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.vm.checkout import copy_checkout
from tests.vm.chroot import in_chroot
from tests.vm.host import HARNESS, run
from tests.vm.image import MKE2FS, Image

_ROOMS = ("kmod", "probes", "agent", "runtime", "scheduler")
GUEST_ENVIRONMENT = {
    "PYTHONPATH": ":".join(["/src", *(f"/src/{room}" for room in _ROOMS), "/opt/spotgpu/site"]),
    "RESULTS": "/results",
}


def make_job_disk(
    image: Image,
    builds: Mapping[str, Path],
    job: Sequence[str] | str,
    environment: Mapping[str, str],
    extra_files: Mapping[str, Path],
    scratch: Path,
) -> Path:
    """Write the disk under `scratch` and return it.

    `builds` maps a variant to its results; `job` is a command as a list, or a bash script as a text;
    `extra_files` maps a place in the guest to a file or folder of the host.
    """
    top = scratch / "job"
    (top / "src").mkdir(parents=True)
    copy_checkout(top / "src")
    _compile(image, top / "src")
    for name, results in builds.items():
        shutil.copytree(results, top / "build" / name, symlinks=True)
    shutil.copytree(HARNESS / "guest", top / "harness", symlinks=True)
    for place, source in extra_files.items():
        _place_extra(source, top / "extra" / place.lstrip("/"))
    (top / "job").mkdir()
    (top / "job/env").write_text(environment_script({**GUEST_ENVIRONMENT, **environment}))
    (top / "job/run").write_text(job if isinstance(job, str) else f"{shlex.join(job)}\n")
    disk = scratch / "job.img"
    size_mib = sum(path.lstat().st_size + 8192 for path in top.rglob("*")) // 2**20
    inodes = sum(1 for _ in top.rglob("*")) + 64
    run([*MKE2FS, "-N", str(inodes), "-d", top, disk, f"{size_mib * 5 // 4 + 16}M"])
    shutil.rmtree(top)
    return disk


def environment_script(environment: Mapping[str, str]) -> str:
    """Return shell text that exports `environment`."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())


def _compile(image: Image, source: Path) -> None:
    """Compile the checkout with the guest's Python at native speed.

    A file that does not compile is left to the guest, which reports it where it is imported: hence `|| :`.
    """
    in_chroot(
        image.tree, ["sh", "-c", "python3 -m compileall -qq /src >/dev/null || :"], binds={"src": source}
    )


def _place_extra(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, place, symlinks=True)
    else:
        shutil.copy2(source, place)
