#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An ordinary CUDA client: adds two vectors through the CUDA driver API and checks every sum.

Knows nothing of spotgpu or of the simulated GPU. Prints `ok N elements, first call waited M ms` and exits 0
only if all sums are right; M is the longest of the calls up to the context, as one of them is the first to
touch the GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time


class CudaError(Exception):
    """A CUDA call failed."""


class Cuda:
    """The calls of libcuda that are needed, each raising CudaError when it fails."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self.longest_ms = 0.0

    def call(self, name: str, *args: object) -> None:
        """Call `name`. Raises CudaError naming it and CUDA's reason."""
        begin = time.monotonic()
        error = getattr(self._lib, name)(*args)
        self.longest_ms = max(self.longest_ms, (time.monotonic() - begin) * 1000)
        if error:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(error, ctypes.byref(text))
            raise CudaError(f"{name}: error {error} ({(text.value or b'?').decode()})")


def add_vectors(cuda: Cuda, a: list[int], b: list[int]) -> list[int]:
    """Return the sums of `a` and `b` modulo 2**32, computed on the current context's GPU."""
    count = len(a)
    array = ctypes.c_uint32 * count
    size = ctypes.c_size_t(ctypes.sizeof(array))
    pointers = [ctypes.c_uint64() for _ in range(3)]
    for pointer in pointers:
        cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), size)
    for pointer, values in zip(pointers, (a, b), strict=False):
        cuda.call("cuMemcpyHtoD_v2", pointer, array(*values), size)
    _launch(cuda, pointers, count)
    sums = array()
    cuda.call("cuMemcpyDtoH_v2", sums, pointers[2], size)
    for pointer in pointers:
        cuda.call("cuMemFree_v2", pointer)
    return list(sums)


def _launch(cuda: Cuda, pointers: list[ctypes.c_uint64], count: int) -> None:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), b"vector_add")
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"vector_add")
    arguments = [*pointers, ctypes.c_uint32(count)]
    params = (ctypes.c_void_p * 4)(*(ctypes.addressof(argument) for argument in arguments))
    blocks = (count + 255) // 256
    cuda.call("cuLaunchKernel", function, blocks, 1, 1, 256, 1, 1, 0, None, params, None)
    cuda.call("cuCtxSynchronize")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--elements", type=int, default=1000)
    parser.add_argument("-d", "--device", type=int, default=0, help="CUDA's number of the device")
    options = parser.parse_args()
    cuda = Cuda()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    try:
        cuda.call("cuInit", 0)
        cuda.call("cuDeviceGet", ctypes.byref(device), options.device)
        cuda.call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        waited_ms = cuda.longest_ms
        a = [3 * i + 1 for i in range(options.elements)]
        b = [0x80000000 + 7 * i for i in range(options.elements)]
        sums = add_vectors(cuda, a, b)
        cuda.call("cuCtxDestroy_v2", context)
    except (OSError, CudaError) as error:
        print(f"cuda_client: {error}", file=sys.stderr)
        return 1
    wrong = sum(s != (x + y) % 2**32 for s, x, y in zip(sums, a, b, strict=True))
    if wrong:
        print(f"cuda_client: {wrong} of {len(sums)} sums are wrong", file=sys.stderr)
        return 1
    print(f"ok {len(sums)} elements, first call waited {waited_ms:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
