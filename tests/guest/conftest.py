# SPDX-License-Identifier: Apache-2.0
"""After every suite: its modules have gone, so nothing refers to them, and no task hangs in the kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.guestlib.containerd import wait_until
from tests.guestlib.leftovers import blocked_tasks, loaded_modules

SETTLE_S = 20.0  # a task that writes to the disk is in D state too, for a moment


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Set up before the fixtures of the suite, so torn down after them."""
    yield
    assert loaded_modules() == []
    wait_until(lambda: not blocked_tasks(), SETTLE_S, "no task is blocked", 0.1)
