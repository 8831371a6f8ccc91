# SPDX-License-Identifier: Apache-2.0
"""The working tree as git sees it (uncommitted files count, ignored ones do not)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.vm.host import REPO, HarnessError

# Results of earlier runs; ignored by git as well, but a guest must never carry them whatever .gitignore says.
_OUTPUT = "build/"


def checkout_files(under: str = ".") -> list[str]:
    """Return the paths below `under`, sorted, relative to the repository; deleted files are left out.

    Raises HarnessError when this is not a git checkout.
    """
    listing = subprocess.run(
        ["git", "-C", str(REPO), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", under],
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        raise HarnessError(f"{REPO}: {listing.stderr.decode(errors='replace').strip()}")
    names = {name for name in listing.stdout.decode().split("\0") if name and not name.startswith(_OUTPUT)}
    return sorted(name for name in names if (REPO / name).is_symlink() or (REPO / name).is_file())


def copy_checkout(target: Path, under: str = ".") -> None:
    """Copy the files below `under` into `target`, with their modes and times."""
    for name in checkout_files(under):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(REPO / name, place, follow_symlinks=False)
        except FileNotFoundError:
            continue  # an editor's temporary file, gone since it was listed
