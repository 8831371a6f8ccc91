# SPDX-License-Identifier: Apache-2.0
"""The only place that talks to NVML: a child process of the agent, see child.py. The only import of pynvml.

Requests: {"op": "inventory"}, {"op": "memory", "limits": {UUID: bytes}}, {"op": "usage", "devices": [UUID]}.
A device that gives an error is missing in the answer: missing data is never taken for an idle device.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pynvml

from spotgpu_agent.handles import cgroup_of
from spotgpu_agent.serving import serve


@cache
def _init() -> None:
    pynvml.nvmlInit()


@cache
def _handle(device: str) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(device)


def _used(handle: Any) -> int:
    """Bytes in use. The second version of the call leaves out what the driver has reserved for itself."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def inventory() -> dict[str, Any]:
    """Every GPU: UUID, minor number of its node, name, memory."""
    devices = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        devices.append(
            {
                "uuid": str(pynvml.nvmlDeviceGetUUID(handle)),
                "minor": int(pynvml.nvmlDeviceGetMinorNumber(handle)),
                "name": str(pynvml.nvmlDeviceGetName(handle)),
                "total": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            }
        )
    return {"devices": devices, "driver": str(pynvml.nvmlSystemGetDriverVersion())}


def memory(limits: dict[str, int]) -> dict[str, Any]:
    """Bytes in use of each device; of those above their limit, also which processes have how much."""
    used: dict[str, int] = {}
    processes: list[list[Any]] = []
    errors: dict[str, str] = {}
    for device, limit in limits.items():
        try:
            used[device] = _used(_handle(device))
            if used[device] > limit:
                processes += _processes(device)
        except pynvml.NVMLError as error:
            used.pop(device, None)
            errors[device] = str(error)
    return {"used": used, "processes": processes, "errors": errors}


def _processes(device: str) -> list[list[Any]]:
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(_handle(device))
    return [[device, one.pid, int(one.usedGpuMemory or 0), cgroup_of(f"/proc/{one.pid}")] for one in found]


def usage(devices: list[str]) -> dict[str, Any]:
    """Bytes in use and utilisation (per cent) of each device."""
    used: dict[str, int] = {}
    utilisation: dict[str, int] = {}
    errors: dict[str, str] = {}
    for device in devices:
        try:
            handle = _handle(device)
            used[device] = _used(handle)
            utilisation[device] = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except pynvml.NVMLError as error:
            errors[device] = str(error)
    return {"used": used, "utilisation": utilisation, "errors": errors}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One request of the agent.

    Raises:
        ValueError: NVML can't do it.
    """
    try:
        _init()
        if request["op"] == "inventory":
            return inventory()
        if request["op"] == "memory":
            return memory(request["limits"])
        if request["op"] == "usage":
            return usage(request["devices"])
    except pynvml.NVMLError as error:
        raise ValueError(f"NVML: {error}") from error
    raise ValueError(f"no operation {request['op']!r}")


if __name__ == "__main__":
    sys.exit(serve(answer))
