# SPDX-License-Identifier: Apache-2.0
"""Can this node run spotgpu? nodefacts.py collects, this file judges, and judging is pure.

A check says what is so and what to do about it. `fail` is what the agent would refuse to start with or could
not do its work with; `warn` is what takes something away, or could not be found out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from spotgpu.names import KHOOK_FAMILY_VERSION
from spotgpu.output import to_json as _json
from spotgpu.text import printable
from spotgpu_agent.nodefacts import Facts, collect

Status = Literal["ok", "warn", "fail"]

OLDEST_KERNEL: Final = (6, 1)
CAP_NET_ADMIN: Final = 12
CAP_SYS_PTRACE: Final = 19
CAPABILITIES: Final = {CAP_NET_ADMIN: "CAP_NET_ADMIN", CAP_SYS_PTRACE: "CAP_SYS_PTRACE"}
# include/linux/proc_ns.h: the inode numbers of the initial namespaces are fixed.
INITIAL_NAMESPACES: Final = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD, "time": 0xEFFFFFFA, "cgroup": 0xEFFFFFFB}
NEEDED_CONFIG: Final = ("MODULES", "FUNCTION_TRACER", "DYNAMIC_FTRACE", "CGROUPS", "NET")
MAX_CLOCK_ERROR_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict.

    Attributes:
        name: what was looked at.
        status: ok, warn or fail.
        detail: what is so.
        remedy: what to do; empty when there is nothing to do.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


def examine(module: Path | None, containerd: Path) -> list[Check]:
    """Collect and judge. Takes seconds where something does not answer, never longer.

    Args:
        module: a khook.ko to look at instead of the installed one.
        containerd: containerd's socket.
    """
    return judge(collect(module, containerd))


def judge(facts: Facts) -> list[Check]:
    """The verdicts, in the order in which a person would mend things."""
    return [check(facts) for check in CHECKS]


def to_json(checks: Sequence[Check]) -> str:
    """For programs."""
    return _json(
        {"ok": all(check.status != "fail" for check in checks), "checks": [asdict(c) for c in checks]}
    )


def to_text(checks: Sequence[Check]) -> str:
    """For people: a line a check, its remedy beneath."""
    wide = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        mark = check.status if check.status != "fail" else "FAIL"
        lines.append(f"{mark:<4}  {check.name:<{wide}}  {printable(check.detail, 512)}\n")
        if check.remedy:
            lines.append(f"{'':<4}  {'':<{wide}}  -> {printable(check.remedy, 512)}\n")
    counts = {status: sum(check.status == status for check in checks) for status in ("ok", "warn", "fail")}
    lines.append(f"\n{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed\n")
    return "".join(lines)


# The kernel -------------------------------------------------------------------------------------------------


def _kernel(f: Facts) -> Check:
    found = re.match(r"(\d+)\.(\d+)", f.release)
    if f.machine != "x86_64":
        return Check("kernel", "fail", f"{f.release} on {f.machine}", "khook is for x86_64")
    if not found or (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        return Check("kernel", "fail", f.release or "unknown", f"boot Linux {oldest} or newer")
    return Check("kernel", "ok", f.release)


def _config(f: Facts) -> Check:
    name = "kernel config"
    if f.config is None:
        return Check(
            name, "warn", "not readable", f"install /boot/config-{f.release} (the linux-image package)"
        )
    missing = [option for option in NEEDED_CONFIG if f.config.get(option) != "y"]
    if "y" not in (f.config.get("DYNAMIC_FTRACE_WITH_REGS"), f.config.get("DYNAMIC_FTRACE_WITH_ARGS")):
        missing.append("DYNAMIC_FTRACE_WITH_REGS or _WITH_ARGS")
    if missing:
        return Check(
            name, "fail", f"lacks {', '.join(missing)} ({f.config_source})", "boot a kernel that has them"
        )
    if f.config.get("KPROBES") != "y":
        return Check(name, "warn", "lacks KPROBES", "functions without fentry cannot be gates on this kernel")
    return Check(name, "ok", f"ftrace and kprobes ({f.config_source})")


def _headers(f: Facts) -> Check:
    if f.headers:
        return Check("headers", "ok", f"/lib/modules/{f.release}/build")
    status: Status = "warn" if f.loaded or f.module.path else "fail"
    return Check(
        "headers",
        status,
        "none for this kernel: khook cannot be built",
        f"apt-get install linux-headers-{f.release}",
    )


def _built(f: Facts) -> Check:
    name = "khook built"
    if f.module.path is None:
        status: Status = "warn" if f.loaded else "fail"
        return Check(
            name,
            status,
            f"no khook.ko for {f.release}",
            "dkms install spotgpu-khook, or name one by --module",
        )
    if f.module.vermagic is None:
        return Check(name, "warn", f"{f.module.path}: {f.module.error}", "build it anew")
    built_for = f.module.vermagic.split(" ")[0]
    if built_for != f.release:
        return Check(
            name,
            "fail",
            f"{f.module.path} is for {built_for}, this is {f.release}",
            "build it for this kernel",
        )
    return Check(name, "ok", f"{f.module.path} ({f.module.vermagic.strip()})")


def _lockdown(f: Facts) -> Check:
    name = "module signing"
    strict = f.lockdown not in (None, "none") or (f.config or {}).get("MODULE_SIG_FORCE") == "y"
    mode = f"lockdown {f.lockdown or 'not built in'}"
    if not strict:
        return Check(name, "ok", f"{mode}: unsigned modules are accepted")
    if f.loaded or f.module.signed:
        return Check(name, "ok", f"{mode}: khook is {'loaded' if f.loaded else 'signed'}")
    return Check(
        name, "fail", f"{mode}: only signed modules load", "sign khook.ko with an enrolled key (mokutil)"
    )


def _loaded(f: Facts) -> Check:
    if f.loaded:
        return Check("khook loaded", "ok", "/sys/module/khook")
    return Check("khook loaded", "fail", "it is not", "modprobe khook")


def _answers(f: Facts) -> Check:
    name = "khook answers"
    if f.khook.value is not None:
        return Check(name, "ok", f.khook.value)
    if not f.loaded:
        return Check(name, "warn", "not asked: it is not loaded")
    return Check(name, "fail", f.khook.error, f.khook.remedy or f"load khook of ABI {KHOOK_FAMILY_VERSION}")


def _ftrace(f: Facts) -> Check:
    if f.ftrace_enabled == 0:
        return Check("ftrace", "fail", "kernel.ftrace_enabled is 0", "sysctl kernel.ftrace_enabled=1")
    if f.ftrace_enabled is None:
        return Check(
            "ftrace", "warn", "kernel.ftrace_enabled is not there", "boot a kernel with FUNCTION_TRACER"
        )
    return Check("ftrace", "ok", "kernel.ftrace_enabled is 1")


def _tracefs(f: Facts) -> Check:
    if f.tracefs is None:
        return Check(
            "tracefs",
            "warn",
            "not mounted: no khook tracepoints, no probes",
            "mount -t tracefs tracefs /sys/kernel/tracing",
        )
    return Check("tracefs", "ok", f.tracefs)


def _redirected(f: Facts) -> Check:
    name = "ftrace users"
    if f.livepatches:
        return Check(
            name,
            "warn",
            f"live patches: {', '.join(f.livepatches)}",
            "a function has room for one: a patched driver function cannot be a gate",
        )
    if f.redirected is None:
        return Check(name, "warn", "enabled_functions is not readable", "mount tracefs and run as root")
    if f.redirected:
        return Check(
            name,
            "warn",
            f"redirected by others: {', '.join(f.redirected[:5])}",
            "these functions cannot be gates; end what redirects them",
        )
    return Check(name, "ok", "no other user redirects functions")


# The node ---------------------------------------------------------------------------------------------------


def _cgroup(f: Facts) -> Check:
    if f.cgroup != "cgroup2":
        return Check(
            "cgroup v2",
            "fail",
            f"/sys/fs/cgroup is {f.cgroup or 'not mounted'}",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    if not f.cgroup_kill:
        return Check("cgroup v2", "fail", "no cgroup.kill", "boot Linux 5.14 or newer")
    return Check("cgroup v2", "ok", "unified, with cgroup.kill")


def _containerd(f: Facts) -> Check:
    if f.containerd.value is None:
        return Check("containerd", "fail", f.containerd.error, f.containerd.remedy)
    return Check("containerd", "ok", f.containerd.value)


def _nvml(f: Facts) -> Check:
    if f.nvml.value is None:
        return Check("NVML", "fail", f.nvml.error, f.nvml.remedy)
    return Check("NVML", "ok", f.nvml.value)


def _permissions(f: Facts) -> Check:
    lacking = [name for bit, name in CAPABILITIES.items() if not f.capabilities >> bit & 1]
    if f.euid != 0:
        return Check("permissions", "fail", f"uid {f.euid}", "run as root")
    if lacking:
        return Check(
            "permissions", "fail", f"lacks {', '.join(lacking)}", "add them to the container's capabilities"
        )
    return Check("permissions", "ok", f"root with {', '.join(CAPABILITIES.values())}")


def _namespaces(f: Facts) -> Check:
    """khook takes commands from the initial user namespace, and pids and times mean the host's."""
    foreign = [kind for kind, inode in f.namespaces.items() if inode != INITIAL_NAMESPACES[kind]]
    if foreign:
        return Check(
            "namespaces",
            "fail",
            f"not the host's: {', '.join(foreign)}",
            "run on the host, or with hostPID and without a user namespace",
        )
    return Check("namespaces", "ok", f"the host's {', '.join(f.namespaces)}")


def _clock(f: Facts) -> Check:
    error = f"kernel time to wall time within {f.clock_error_ns} ns"
    if f.clock_error_ns > MAX_CLOCK_ERROR_NS:
        return Check(
            "clock", "warn", error, "the node is too busy to read its clocks; traces may be off by this much"
        )
    return Check("clock", "ok", error)


CHECKS: Final[tuple[Callable[[Facts], Check], ...]] = (
    _kernel,
    _config,
    _headers,
    _built,
    _lockdown,
    _loaded,
    _answers,
    _ftrace,
    _tracefs,
    _redirected,
    _cgroup,
    _containerd,
    _nvml,
    _permissions,
    _namespaces,
    _clock,
)
