# SPDX-License-Identifier: Apache-2.0
"""A folder cache keyed by content: entries appear whole (rename), made once even by two runs (flock)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.vm.host import cache_root, say

KEY_LENGTH = 16
UNUSED_FOR_S = 14 * 86400


def content_key(*parts: object) -> str:
    """Return a short hash of `parts` (JSON values, and bytes for the content of files)."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:KEY_LENGTH]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, saying so if another run has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that makes {path.stem}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cached(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Return the cache entry `kind`/`name`, made by `make(folder)` if it is not there.

    An entry that exists is complete: it is made in a folder beside its place and renamed. What a killed run
    left is removed by the next one that makes the same entry.
    """
    home = cache_root() / kind
    final = home / name
    if final.is_dir():
        os.utime(final)
        return final
    with locked(home / f"{name}.lock"):
        if final.is_dir():
            return final
        for stale in home.glob(f"{name}.tmp-*"):
            shutil.rmtree(stale)
        temporary = Path(tempfile.mkdtemp(prefix=f"{name}.tmp-", dir=home))
        temporary.chmod(0o755)
        try:
            make(temporary)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    _forget_unused(home)
    return final


def _forget_unused(home: Path) -> None:
    """Remove entries that no run has used for long: keyed by content, the old are never asked for."""
    for entry in home.iterdir():
        if (
            entry.is_dir()
            and ".tmp-" not in entry.name
            and time.time() - entry.stat().st_mtime > UNUSED_FOR_S
        ):
            say(f"cache: forgets {home.name}/{entry.name}, unused for {UNUSED_FOR_S // 86400} days")
            shutil.rmtree(entry)
