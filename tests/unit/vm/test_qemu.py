# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.vm.guests import GUESTS
from tests.vm.host import HarnessError
from tests.vm.image import Image
from tests.vm.pysite import Site
from tests.vm.qemu import Machine, choose_accelerator, command_line

METAL = "processor: 0\nflags\t\t: fpu vme vmx\n"
VIRTUAL = "processor: 0\nflags\t\t: fpu vme hypervisor vmx\n"
MACHINE = Machine(memory_mib=3072, cpus=2, icount=False, interactive=False, accelerator="tcg")


@pytest.mark.parametrize(
    ("environment", "cpuinfo", "kvm_works", "expected"),
    [
        ({}, METAL, True, "kvm"),
        ({}, METAL, False, "tcg"),
        ({}, VIRTUAL, True, "tcg"),
        ({"ACCEL": "kvm"}, VIRTUAL, True, "kvm"),
        ({"ACCEL": "tcg"}, METAL, True, "tcg"),
        ({"ACCEL": ""}, METAL, True, "kvm"),
    ],
)
def test_kvm_is_for_bare_metal_or_by_order(
    environment: dict[str, str], cpuinfo: str, kvm_works: bool, expected: str
) -> None:
    assert choose_accelerator(environment, cpuinfo, kvm_works) == expected


def test_an_unknown_accelerator_is_refused() -> None:
    with pytest.raises(HarnessError, match="ACCEL=xen"):
        choose_accelerator({"ACCEL": "xen"}, METAL, True)


def arguments(machine: Machine) -> list[str]:
    image = Image(
        GUESTS["6.12"], Path("/tree"), Path("/root.img"), Path("/kernel"), Path("/initramfs"), "6.12.0"
    )
    return command_line(
        image, Site(Path("/site"), Path("/site.img")), Path("/job.img"), machine, Path("/out")
    )


def test_a_crash_ends_the_guest_and_the_root_stays_as_it_is() -> None:
    line = arguments(MACHINE)
    assert "-no-reboot" in line
    kernel = line[line.index("-append") + 1].split()
    assert {"oops=panic", "panic=-1", "softlockup_panic=1", "hung_task_panic=1"} <= set(kernel)
    drives = [part for part in line if part.startswith("if=none")]
    assert [drive.split(",")[-2:] for drive in drives[:1]] == [["snapshot=on", "cache=unsafe"]]
    assert all("readonly=on" in drive for drive in drives[1:])


def test_icount_has_one_processor_and_virtual_time() -> None:
    line = arguments(replace(MACHINE, icount=True, accelerator="kvm"))
    assert line[line.index("-icount") + 1] == "shift=0,sleep=off"
    assert line[line.index("-smp") + 1] == "1"
    assert line[line.index("-accel") + 1] == "tcg"


def test_a_shell_has_the_terminal_and_a_job_has_a_port() -> None:
    assert "chardev:terminal" in arguments(replace(MACHINE, interactive=True))
    assert any("name=spotgpu.job" in part for part in arguments(MACHINE))
