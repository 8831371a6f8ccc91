# SPDX-License-Identifier: Apache-2.0
"""The state file: durable, versioned, and never believed when it is damaged."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotgpu.names import Trigger
from spotgpu_agent.errors import StateError
from spotgpu_agent.state import (
    FILE_NAME,
    Saved,
    SavedHandBack,
    SavedOwner,
    TornError,
    Writer,
    boot_id,
    dump,
    load,
    parse,
    project,
    write,
)
from tests.unit.agent.worlds import DEVICE, SpotLife, World, lent, owner_container, spot_container

OWNER = SavedOwner(
    name="dev",
    container=owner_container(),
    watch=3,
    watching=True,
    baseline=((DEVICE, 5),),
    quarantined=((DEVICE, "memory: 1 MiB over"),),
    leased=(spot_container(),),
    unfinished=(),
    handback=SavedHandBack(7, Trigger.HOLD, 123),
)


def saved() -> Saved:
    return Saved(boot_id(), (OWNER,))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, dump(saved()))
    assert load(tmp_path) == (saved(), "state file read")
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [FILE_NAME]


def test_a_missing_file_is_a_first_start(tmp_path: Path) -> None:
    assert load(tmp_path / "new")[0] is None
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@settings(deadline=None)
@given(st.data())
def test_a_damaged_file_is_torn_or_foreign_but_never_believed(data: st.DataObject) -> None:
    whole = dump(saved())
    at = data.draw(st.integers(0, len(whole) - 2))
    how = data.draw(st.sampled_from(["cut", "flip"]))
    broken = whole[:at] if how == "cut" else whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :]
    with contextlib.suppress(StateError):
        assert parse(broken) == saved(), "whitespace may change, nothing else"


def test_a_torn_file_is_set_aside_and_the_start_is_closed(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(dump(saved())[:-40])
    found, says = load(tmp_path)
    assert found is None
    assert "starting closed" in says
    assert (tmp_path / "leases.json.torn").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"program": "other"}', "not a file of the spotgpu agent"),
        (b"[]", "not a file of the spotgpu agent"),
        (b'{"program": "spotgpu-agent", "schema": 99}', "schema 99"),
    ],
)
def test_a_foreign_or_newer_file_is_an_error_with_a_remedy(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StateError, match=says) as caught:
        load(tmp_path)
    assert caught.value.remedy
    assert (tmp_path / FILE_NAME).read_bytes() == content, "left as it is"


def test_a_file_of_another_boot_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, dump(Saved("another", (OWNER,))))
    assert load(tmp_path) == (None, "the state file is of another boot")


def test_a_wrong_field_type_is_torn_even_with_a_right_checksum() -> None:
    document = json.loads(dump(saved()))
    document["body"]["owners"][0]["watch"] = "3"
    import zlib

    document["crc32"] = zlib.crc32(json.dumps(document["body"], sort_keys=True).encode())
    with pytest.raises(TornError, match=r"owners\[0\].watch"):
        parse(json.dumps(document).encode())


def test_the_writer_keeps_the_newest_and_flushes_on_close(tmp_path: Path) -> None:
    failures: list[OSError] = []
    writer = Writer(tmp_path / FILE_NAME, failures.append)
    for number in range(200):
        writer.put(b"%d" % number)
    assert writer.close(10)
    assert (tmp_path / FILE_NAME).read_bytes() == b"199"
    assert not failures


def test_a_failed_write_is_told_and_the_old_file_is_not_left_to_be_believed(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"old")
    path.with_suffix(".tmp").mkdir()  # the temporary file can't be opened
    failures: list[OSError] = []
    writer = Writer(path, failures.append)
    writer.put(b"new")
    assert writer.close(10)
    assert [error.errno for error in failures] == [errno.EISDIR]
    assert not path.exists()


def test_a_write_that_fails_midway_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE_NAME
    write(path, b"old")

    def no_space(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_running_lease_and_a_hand_back_are_projected() -> None:
    world = lent(World(spots=[SpotLife(spot_container())]))
    before = project(world.owner)
    assert before.watching
    assert before.leased == (spot_container(),)
    world.owner_calls()
    world.run(5_000_000)
    during = project(world.owner)
    assert not during.watching
    assert during.unfinished == (spot_container(),)
    assert during.handback is not None
