# SPDX-License-Identifier: Apache-2.0
"""The state file: what a restarted agent can't learn from the kernel or containerd.

One JSON file with a schema version and a checksum, written to a temporary file, synced, renamed, and the
directory synced. A torn file is set aside and the start is closed (nothing of it is believed); a file of
another program or of a newer version is an error. Records of another boot are dropped: cgroup ids, watch ids
and monotonic times mean nothing after it.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spotgpu.names import Trigger
from spotgpu_agent.codec import CodecError, decode, encode
from spotgpu_agent.errors import StateError
from spotgpu_agent.model import Amounts, OwnerContainer, OwnerState, SpotContainer

SCHEMA: Final = 1
PROGRAM: Final = "spotgpu-agent"
FILE_NAME: Final = "leases.json"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class SavedHandBack:
    """A hand-back that was under way."""

    id: int
    trigger: Trigger
    first_ns: int


@dataclass(frozen=True, slots=True)
class SavedOwner:
    """One owner.

    Attributes:
        watching: the watch had caught every call since the devices were proven idle.
        leased: spot containers with a lease, for `spotgpu status` of a node whose agent is down.
        unfinished: spot containers whose eviction was not over.
    """

    name: str
    container: OwnerContainer | None
    watch: int | None
    watching: bool
    baseline: Amounts
    quarantined: tuple[tuple[str, str], ...]
    leased: tuple[SpotContainer, ...]
    unfinished: tuple[SpotContainer, ...]
    handback: SavedHandBack | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """The whole file."""

    boot_id: str
    owners: tuple[SavedOwner, ...] = ()

    def owner(self, name: str) -> SavedOwner | None:
        """The record of one owner."""
        return next((owner for owner in self.owners if owner.name == name), None)


def project(o: OwnerState) -> SavedOwner:
    """What is worth keeping of an owner's state."""
    back = o.handback
    saved = SavedHandBack(back.id, back.trigger, back.first_ns) if back is not None else None
    return SavedOwner(
        name=o.name,
        container=o.container,
        watch=o.watch,
        watching=o.watching,
        baseline=o.baseline,
        quarantined=o.quarantined,
        leased=tuple(spot.container for spot in o.spots if not spot.evicted),
        unfinished=tuple(spot.container for spot in o.spots if spot.evicted and not spot.tidied),
        handback=saved,
    )


def dump(saved: Saved) -> bytes:
    """The file's bytes."""
    body = encode(saved)
    document = {"program": PROGRAM, "schema": SCHEMA, "crc32": _crc(body), "body": body}
    return json.dumps(document, indent=1).encode() + b"\n"


def parse(data: bytes) -> Saved:
    """A file's content.

    Raises:
        TornError: it is damaged.
        StateError: it is not ours, or of a newer version.
    """
    try:
        document: Any = json.loads(data)
    except ValueError as error:
        raise TornError("the file is torn") from error
    if not isinstance(document, dict) or document.get("program") != PROGRAM:
        raise StateError("not a file of the spotgpu agent", remedy="move it away, or set another state_dir")
    if document.get("schema") != SCHEMA:
        message = f"schema {document.get('schema')!r}, this agent writes {SCHEMA}"
        raise StateError(message, remedy="run the agent version that wrote it, or move the file away")
    body = document.get("body")
    if document.get("crc32") != _crc(body):
        raise TornError("the file's checksum is wrong")
    try:
        saved: Saved = decode(Saved, body, "body")
    except CodecError as error:
        raise TornError(str(error)) from error
    return saved


class TornError(StateError):
    """The file is damaged: nothing of it is believed."""


def _crc(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def boot_id() -> str:
    """The kernel's id of this boot."""
    return BOOT_ID.read_text().strip()


def write(path: Path, data: bytes) -> None:
    """Replace a file durably: temporary file, fsync, rename, fsync of the directory.

    Raises:
        OSError: the old file is untouched.
    """
    temporary = path.with_suffix(".tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(directory: Path) -> tuple[Saved | None, str]:
    """The records of this boot, if there are any, and what is to be said of them.

    A torn file is set aside as `leases.json.torn`.

    Raises:
        StateError: the file is not ours, newer, or can't be read.
    """
    path = directory / FILE_NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = path.read_bytes()
    except FileNotFoundError:
        return None, "no state file: a first start"
    except OSError as error:
        raise StateError(error.strerror or str(error), str(path), "make it readable for root") from error
    try:
        saved = parse(data)
    except TornError as error:
        path.replace(path.with_suffix(".json.torn"))
        return None, f"{path}: {error.message}: set aside, starting closed"
    except StateError as error:
        raise StateError(error.message, str(path), error.remedy) from error
    if saved.boot_id != boot_id():
        return None, "the state file is of another boot"
    return saved, "state file read"


class Writer:
    """Writes the file in a thread of its own, newest content only: nobody ever waits for a disk.

    When a write fails the old file is removed if it can be: an old file that is believed is worse than none.
    """

    def __init__(self, path: Path, failed: Callable[[OSError], None]) -> None:
        self._path = path
        self._failed = failed
        self._wanted: bytes | None = None
        self._closing = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Have this written; what waits is replaced."""
        with self._change:
            self._wanted = data
            self._change.notify()

    def close(self, timeout_s: float) -> bool:
        """Write what waits and end; False when it took too long."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._wanted is not None or self._closing)
                data, self._wanted = self._wanted, None
            if data is None:
                return
            try:
                write(self._path, data)
            except OSError as error:
                self._failed(error)
                self._discard()

    def _discard(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._failed(error)
