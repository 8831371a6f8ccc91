# SPDX-License-Identifier: Apache-2.0
"""The simulated driver's layouts are the real driver's, in 64-bit and in 32-bit processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

KERNEL = Path(__file__).parents[2] / "sim/kernel"

# What the driver's public interface says, told independently of our header.
FACTS = {
    "sizeof(struct nv_card_info)": 72,
    "offsetof(struct nv_card_info, gpu_id)": 16,
    "offsetof(struct nv_card_info, reg_address)": 24,
    "offsetof(struct nv_card_info, minor_number)": 56,
    "sizeof(struct nv_check_version)": 72,
    "sizeof(struct nv_xfer)": 16,
    "offsetof(struct nv_xfer, ptr)": 8,
    "sizeof(struct nv_rm_free)": 16,
    "sizeof(struct nv_rm_alloc)": 32,
    "offsetof(struct nv_rm_alloc, class)": 12,
    "offsetof(struct nv_rm_alloc, status)": 28,
    "sizeof(struct nv_rm_alloc_rights)": 48,
    "offsetof(struct nv_rm_alloc_rights, class)": 12,
    "offsetof(struct nv_rm_alloc_rights, status)": 40,
    "sizeof(struct nv_rm_control)": 32,
    "offsetof(struct nv_rm_control, params)": 16,
    "sizeof(struct nv_rm_map_memory)": 56,
    "offsetof(struct nv_rm_map_memory, fd)": 48,
    "offsetof(struct nv_alloc_memory, size)": 64,
    "sizeof(struct uvm_initialize)": 16,
    "sizeof(struct uvm_register_gpu)": 40,
    "sizeof(struct uvm_register_gpu_vaspace)": 32,
    "sizeof(struct uvm_register_channel)": 56,
    "offsetof(struct uvm_map_external, gpus_count)": 24 + 256 * 36,
    "NV_IOCTL(NV_ESC_RM_ALLOC, struct nv_rm_alloc)": 0xC020462B,
    "NV_IOCTL(NV_ESC_RM_CONTROL, struct nv_rm_control)": 0xC020462A,
    "NV_IOCTL(NV_ESC_RM_FREE, struct nv_rm_free)": 0xC0104629,
    "NV_IOCTL(NV_ESC_XFER_CMD, struct nv_xfer)": 0xC01046D3,
    "NV_IOCTL(NV_ESC_REGISTER_FD, struct nv_register_fd)": 0xC00446C9,
    "UVM_INITIALIZE": 0x30000001,
    "sizeof(struct nvsim_doorbell) <= 4096": 1,
}


@pytest.mark.parametrize("bits", ["-m64", "-m32"])
def test_layouts(bits: str) -> None:
    lines = ["#include <stddef.h>", '#include "nvsim_uapi.h"']
    lines += [f'_Static_assert(({what}) == {value}u, "{what}");' for what, value in FACTS.items()]
    # The kernel's headers for the machine word are the same for both, but only one multiarch folder has them.
    command = ["gcc", bits, "-fsyntax-only", "-I", str(KERNEL), "-isystem", "/usr/include/x86_64-linux-gnu"]
    done = subprocess.run(
        [*command, "-xc", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
