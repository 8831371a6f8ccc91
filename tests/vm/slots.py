# SPDX-License-Identifier: Apache-2.0
"""How many guests run on this host at once, whoever started them.

A guest's tests keep about two thirds of a core busy and wait for the rest, so three guests fill two cores.
More would only make each slower, until the limits that tell a hung guest from a living one mean nothing.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.vm.host import HarnessError, cache_root, say

WAIT_LIMIT_S = 3600.0
_POLL_S = 0.5


def slot_count() -> int:
    """Guests that fill this host's cores."""
    cores = os.cpu_count() or 1
    return cores + cores // 2


@contextmanager
def slot(
    count: int | None = None,
    wait_limit_s: float = WAIT_LIMIT_S,
    stop: Callable[[], str | None] | None = None,
) -> Iterator[int]:
    """Hold one of the host's `count` slots (default: slot_count()) and give its number.

    A slot is a lock on a file, so that it ends with its holder. Raises HarnessError after `wait_limit_s`
    seconds, or when `stop` gives a reason.
    """
    home = cache_root() / "slots"
    home.mkdir(parents=True, exist_ok=True)
    slots = count or slot_count()
    deadline = time.monotonic() + wait_limit_s
    waited = False
    with ExitStack() as files:
        handles = [files.enter_context((home / str(number)).open("w")) for number in range(slots)]
        while True:
            for number, handle in enumerate(handles):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield number
                return
            reason = stop() if stop else None
            if reason:
                raise HarnessError(f"no guest was started: {reason}")
            if time.monotonic() > deadline:
                raise HarnessError(f"no guest slot within {wait_limit_s:.0f} s: {slots} guests run here")
            if not waited:
                say(f"waiting: {slots} guests run on this host already")
                waited = True
            time.sleep(_POLL_S)
