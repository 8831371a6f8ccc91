# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm.host import HarnessError
from tests.vm.slots import slot


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTGPU_CACHE", str(tmp_path))


def test_a_slot_is_held_by_one_and_free_afterwards() -> None:
    with slot(2) as first, slot(2) as second:
        assert {first, second} == {0, 1}
        with pytest.raises(HarnessError, match="2 guests run here"), slot(2, wait_limit_s=0.1):
            pass
        with pytest.raises(HarnessError, match="interrupted"), slot(2, stop=lambda: "interrupted"):
            pass
    with slot(2) as number:
        assert number == 0
