# SPDX-License-Identifier: Apache-2.0
"""QEMU's command line, and whether it may use hardware virtualisation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.vm.host import HarnessError
from tests.vm.image import Image
from tests.vm.pysite import Site

ACCELERATORS = ("tcg", "kvm")
# Emulation is some twenty times slower than hardware: with the kernel's default of 10 s (lockup at twice
# that), a host busy with something else would look like a lockup of the guest.
WATCHDOG_THRESH_S = 30

KERNEL_ARGUMENTS = (
    "console=ttyS0,115200",
    "oops=panic",
    "panic=-1",
    "softlockup_panic=1",
    "hung_task_panic=1",
    f"watchdog_thresh={WATCHDOG_THRESH_S}",
    # Else the kernel compares clocks between CPUs, and on a busy host leaves the cheap one for the HPET.
    "tsc=reliable",
    # On a busy host the timer's test interrupts come late, and the kernel panics over its IO-APIC.
    "no_timer_check",
    "mitigations=off",
    "nokaslr",
    "audit=0",
    "loglevel=5",
    "printk.devkmsg=on",
    "random.trust_cpu=on",
)


@dataclass(frozen=True)
class Machine:
    """What one boot asks of QEMU; memory in MiB."""

    memory_mib: int
    cpus: int
    icount: bool
    interactive: bool
    accelerator: str


def choose_accelerator(environment: Mapping[str, str], cpuinfo: str, kvm_works: bool) -> str:
    """Return `kvm` or `tcg`: $ACCEL if set, else kvm on bare metal alone.

    Inside a virtual machine /dev/kvm may open while guests hang, so a hypervisor flag means tcg. Raises
    HarnessError for a value that is neither.
    """
    asked = environment.get("ACCEL")
    if asked:
        if asked not in ACCELERATORS:
            raise HarnessError(f"ACCEL={asked}: must be one of {', '.join(ACCELERATORS)}")
        return asked
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    return "kvm" if kvm_works and "hypervisor" not in flags else "tcg"


def host_accelerator() -> str:
    """Choose the accelerator for this host."""
    return choose_accelerator(
        os.environ, Path("/proc/cpuinfo").read_text(), os.access("/dev/kvm", os.R_OK | os.W_OK)
    )


def command_line(image: Image, site: Site, job_disk: Path, machine: Machine, out_dir: Path) -> list[str]:
    """Return the argument vector. Console, control, events and result files are written to `out_dir`."""
    arguments = ["qemu-system-x86_64", "-machine", "q35", "-nodefaults", "-display", "none", "-no-reboot"]
    arguments += ["-m", str(machine.memory_mib), *_processor(machine)]
    arguments += ["-kernel", str(image.kernel), "-initrd", str(image.initramfs)]
    arguments += ["-append", " ".join(KERNEL_ARGUMENTS)]
    arguments += _disk("root", image.disk, "snapshot=on,cache=unsafe")
    arguments += _disk("job", job_disk, "readonly=on")
    arguments += _disk("site", site.disk, "readonly=on")
    arguments += ["-serial", f"file:{out_dir}/console.log"]
    arguments += ["-device", "virtio-serial-pci"]
    arguments += _port("control", f"file,path={out_dir}/control.log")
    arguments += _port("events", f"file,path={out_dir}/events.log")
    arguments += _port("results", f"file,path={out_dir}/results.tar")
    if machine.interactive:
        arguments += ["-chardev", "stdio,id=terminal,signal=off", "-serial", "chardev:terminal"]
    else:
        arguments += _port("job", "stdio,signal=off")
    return arguments


def _processor(machine: Machine) -> list[str]:
    if machine.icount:
        # One virtual nanosecond an instruction, idle time skipped: the counter is the number of instructions.
        return ["-accel", "tcg", "-cpu", "max", "-icount", "shift=0,sleep=off", "-smp", "1"]
    if machine.accelerator == "kvm":
        return ["-accel", "kvm", "-cpu", "host", "-smp", str(machine.cpus)]
    # One thread runs all virtual CPUs in turn. With one for each, QEMU 7.2 may keep the translation of an
    # instruction that another CPU was just patching: an Oops by the int3 of a text patch that is over, a CPU
    # that meets it for ever, a call of a trampoline that is gone. Measured with nothing but the kernel's own
    # function tracer, switched on and off while its function is called: 6.1 hangs within half a minute.
    return ["-accel", "tcg,thread=single", "-cpu", "max", "-smp", str(machine.cpus)]


def _disk(name: str, path: Path, options: str) -> list[str]:
    return [
        *("-drive", f"if=none,id={name},format=raw,file={path},{options}"),
        *("-device", f"virtio-blk-pci,drive={name}"),
    ]


def _port(name: str, backend: str) -> list[str]:
    kind, _, options = backend.partition(",")
    return [
        *("-chardev", f"{kind},id={name},{options}"),
        *("-device", f"virtserialport,chardev={name},name=spotgpu.{name}"),
    ]
