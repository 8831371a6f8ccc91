# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine by NVML, and their health."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pynvml

from tests.sim.placement import Card

# Xids that an application causes; the device itself is well (NVIDIA's own plugin ignores the same).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_WAIT_MS = 500


def read_inventory() -> list[Card]:
    """Return the GPUs that NVML shows. Raises NVMLError; NVML must be initialised."""
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    cards = []
    for i, handle in enumerate(handles):
        links = {uuids[j] for j, other in enumerate(handles) if i != j and _linked(handle, other)}
        minor = pynvml.nvmlDeviceGetMinorNumber(handle)
        cards.append(Card(uuids[i], i, minor, _numa(handle), frozenset(links)))
    return cards


def _numa(handle: object) -> int:
    try:
        return int(pynvml.nvmlDeviceGetNumaNodeId(handle))
    except pynvml.NVMLError_NotSupported:
        return -1


def _linked(a: object, b: object) -> bool:
    status = pynvml.nvmlDeviceGetP2PStatus(a, b, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


class HealthWatch(threading.Thread):
    """Tells `on_sick(uuid, why)` of each Xid that is not an application's, from a thread of its own.

    When NVML can no longer be asked, every GPU is told sick: nobody would notice the next Xid.
    """

    def __init__(self, cards: Sequence[Card], on_sick: Callable[[str, str], None]) -> None:
        super().__init__(name="health", daemon=True)
        self._uuids = {card.index: card.uuid for card in cards}
        self._on_sick = on_sick
        self._ended = threading.Event()
        self._events = pynvml.nvmlEventSetCreate()
        for index in self._uuids:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._wait_one()
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError as error:
                for uuid in self._uuids.values():
                    self._on_sick(uuid, f"NVML can no longer be asked: {error}")
                return

    def _wait_one(self) -> None:
        event = pynvml.nvmlEventSetWait_v2(self._events, _WAIT_MS)
        if event.eventData not in APPLICATION_XIDS:
            index = pynvml.nvmlDeviceGetIndex(event.device)
            self._on_sick(self._uuids[index], f"Xid {event.eventData}")

    def end(self) -> None:
        """Stop within the wait's length."""
        self._ended.set()
        self.join()
        pynvml.nvmlEventSetFree(self._events)
