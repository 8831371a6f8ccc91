# SPDX-License-Identifier: Apache-2.0
"""A process with a GPU mapped and nothing of it open: a doorbell page outlives its descriptors."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path


def main(gpu: int) -> None:
    """Make a context on a GPU, close every descriptor of the driver, say so, and stay.

    The context dies with the control node's descriptor, so its memory returns; the mapping stays.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for error in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), gpu),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
    ):
        assert error == 0, error
    for entry in list(Path("/proc/self/fd").iterdir()):
        if entry.is_symlink() and str(entry.readlink()).startswith("/dev/nvidia"):
            os.close(int(entry.name))
    print("ready", flush=True)
    time.sleep(1000)
