# SPDX-License-Identifier: Apache-2.0
"""What doctor.py judges: reads files, asks (nodeasks.py), decides nothing."""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Final

from spotgpu_agent.clock import Clock
from spotgpu_agent.nodeasks import Asked, ask_all

SIGNATURE: Final = b"~Module signature appended~\n"  # kernel/module/signing.c, MODULE_SIG_STRING
NAMESPACES: Final = ("pid", "user", "time", "cgroup")


@dataclass(frozen=True, slots=True)
class Module:
    """A khook.ko file.

    Attributes:
        path: where; None when none was found.
        vermagic: from its .modinfo; None when it could not be read.
        signed: it carries a signature.
        error: why it could not be read.
    """

    path: Path | None = None
    vermagic: str | None = None
    signed: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found; None stands for what could not be found out.

    Attributes:
        release: of the running kernel, as uname -r.
        machine: as uname -m.
        config: kernel options by name without CONFIG_.
        config_source: the file they are from.
        headers: this kernel's headers are there.
        module: the khook.ko for this kernel.
        loaded: khook is in the kernel.
        khook: what it answers.
        lockdown: none, integrity or confidentiality.
        ftrace_enabled: kernel.ftrace_enabled.
        tracefs: where it is mounted.
        redirected: functions that somebody other than khook redirects (IPMODIFY).
        livepatches: names of the live patches that are loaded.
        cgroup: file system type of /sys/fs/cgroup.
        cgroup_kill: cgroups have cgroup.kill.
        containerd: its version.
        nvml: the driver and its devices.
        euid: effective uid.
        capabilities: effective, as a mask.
        namespaces: inode numbers by kind.
        clock_error_ns: bound on kernel time to wall time.
    """

    release: str = ""
    machine: str = "x86_64"
    config: Mapping[str, str] | None = None
    config_source: str = ""
    headers: bool = False
    module: Module = field(default_factory=Module)
    loaded: bool = False
    khook: Asked = field(default_factory=Asked)
    lockdown: str | None = None
    ftrace_enabled: int | None = None
    tracefs: str | None = None
    redirected: Sequence[str] | None = None
    livepatches: Sequence[str] = ()
    cgroup: str | None = None
    cgroup_kill: bool = False
    containerd: Asked = field(default_factory=Asked)
    nvml: Asked = field(default_factory=Asked)
    euid: int = 0
    capabilities: int = 0
    namespaces: Mapping[str, int] = field(default_factory=dict)
    clock_error_ns: int = 0


def collect(module: Path | None, containerd: Path, root: Path = Path("/")) -> Facts:
    """The facts of this node.

    Args:
        module: a khook.ko to look at instead of the installed one.
        containerd: containerd's socket.
        root: where /proc, /sys, /boot and /lib are looked for; tests give a tree of their own.
    """
    node = os.uname()
    source, config = _config(root, node.release)
    modules = root / "lib/modules" / node.release
    asked = ask_all(containerd)
    return Facts(
        release=node.release,
        machine=node.machine,
        config=config,
        config_source=source,
        headers=_there(modules / "build/Makefile"),
        module=read_module(module if module is not None else _installed(modules)),
        loaded=_there(root / "sys/module/khook"),
        khook=asked.khook,
        lockdown=_chosen(_read(root / "sys/kernel/security/lockdown")),
        ftrace_enabled=_integer(_read(root / "proc/sys/kernel/ftrace_enabled")),
        tracefs=_tracefs(root),
        redirected=_redirected(root),
        livepatches=_names(root / "sys/kernel/livepatch"),
        cgroup=_mounted(_read(root / "proc/self/mounts") or "", "/sys/fs/cgroup"),
        cgroup_kill=any((root / "sys/fs/cgroup").glob("*/cgroup.kill")),
        containerd=asked.containerd,
        nvml=asked.nvml,
        euid=os.geteuid(),
        capabilities=_capabilities(_read(root / "proc/self/status") or ""),
        namespaces=_namespaces(root),
        clock_error_ns=Clock().offset().error_ns,
    )


def read_module(path: Path | None) -> Module:
    """What a module file says of itself; its faults are told, not raised."""
    if path is None:
        return Module()
    try:
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        elif path.suffix == ".gz":
            data = gzip.decompress(data)
        elif path.suffix != ".ko":
            return Module(path, error=f"{path.suffix} files are not read")
    except (OSError, lzma.LZMAError, EOFError) as error:
        return Module(path, error=f"cannot be read: {error}")
    info = _modinfo(data)
    vermagic = info.get("vermagic")
    return Module(path, vermagic, data.endswith(SIGNATURE), "" if vermagic else "is no kernel module")


def _modinfo(data: bytes) -> dict[str, str]:
    """The name=value strings of the .modinfo section; empty when there is none."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        section = ELFFile(BytesIO(data)).get_section_by_name(".modinfo")
    except (ELFError, ValueError, KeyError):
        return {}
    if section is None:
        return {}
    pairs = (item.partition("=") for item in section.data().decode("utf-8", "replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _installed(modules: Path) -> Path | None:
    """The khook that modprobe would take: the one in modules.dep; else one that depmod has not seen yet."""
    for line in (_read(modules / "modules.dep") or "").splitlines():
        name = line.partition(":")[0]
        if Path(name).name.split(".")[0] == "khook":
            return modules / name
    found = sorted(
        found for folder in ("updates", "extra") for found in (modules / folder).rglob("khook.ko*")
    )
    return found[0] if found else None


def _config(root: Path, release: str) -> tuple[str, dict[str, str] | None]:
    for path in (
        root / "proc/config.gz",
        root / f"boot/config-{release}",
        root / f"lib/modules/{release}/config",
    ):
        try:
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
        except (OSError, EOFError):
            continue
        pairs = (
            line.split("=", 1) for line in text.splitlines() if line.startswith("CONFIG_") and "=" in line
        )
        return str(path), {name.removeprefix("CONFIG_"): value.strip('"') for name, value in pairs}
    return "", None


def _there(path: Path) -> bool:
    """Whether we can see that it is there; Path.exists() raises where a folder above may not be entered."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _chosen(text: str | None) -> str | None:
    """`integrity` of `none [integrity] confidentiality`."""
    return text[text.index("[") + 1 : text.index("]")] if text and "[" in text and "]" in text else None


def _tracefs(root: Path) -> str | None:
    for name in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        if _there(root / name / "README"):
            return f"/{name}"
    return None


def _redirected(root: Path) -> list[str] | None:
    """Functions with the flag I in enabled_functions (kernel/trace/ftrace.c, t_show), but for khook's own."""
    where = _tracefs(root)
    text = _read(root / where.lstrip("/") / "enabled_functions") if where else None
    if text is None:
        return None
    return [
        line.split()[0]
        for line in text.splitlines()
        if " I " in line.split("\t")[0] + " " and "khook" not in line
    ]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _mounted(mounts: str, where: str) -> str | None:
    """Type of what is mounted on `where`; the last one counts."""
    found = [
        line.split()[2] for line in mounts.splitlines() if len(line.split()) > 2 and line.split()[1] == where
    ]
    return found[-1] if found else None


def _capabilities(status: str) -> int:
    found = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return int(found[0], 16) if found else 0


def _namespaces(root: Path) -> dict[str, int]:
    folder = root / "proc/self/ns"
    return {kind: (folder / kind).stat().st_ino for kind in NAMESPACES if _there(folder / kind)}
