# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import json
import lzma
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from spotgpu_agent import nodeasks
from spotgpu_agent.doctor import CHECKS, INITIAL_NAMESPACES, Check, examine, judge, to_json, to_text
from spotgpu_agent.nodeasks import Asked, ask_all
from spotgpu_agent.nodefacts import SIGNATURE, Facts, Module, collect, read_module

RELEASE = "6.12.117+deb13-cloud-amd64"
CONFIG = dict.fromkeys(
    ("MODULES", "FUNCTION_TRACER", "DYNAMIC_FTRACE", "DYNAMIC_FTRACE_WITH_ARGS", "CGROUPS", "NET", "KPROBES"),
    "y",
)
GOOD = Facts(
    release=RELEASE,
    config=CONFIG,
    config_source="/boot/config",
    headers=True,
    module=Module(Path("/lib/khook.ko"), f"{RELEASE} SMP preempt mod_unload ", False),
    loaded=True,
    khook=Asked("ABI 1"),
    lockdown="none",
    ftrace_enabled=1,
    tracefs="/sys/kernel/tracing",
    redirected=(),
    cgroup="cgroup2",
    cgroup_kill=True,
    containerd=Asked("containerd 2.1"),
    nvml=Asked("driver 580, 2 devices"),
    capabilities=(1 << 41) - 1,
    namespaces=INITIAL_NAMESPACES,
)


def verdicts(facts: Facts) -> dict[str, Check]:
    return {check.name: check for check in judge(facts)}


def test_a_good_node_has_nothing_to_do() -> None:
    checks = judge(GOOD)
    assert [check for check in checks if check.status != "ok"] == []
    assert all(check.detail and not check.remedy for check in checks)
    assert len({check.name for check in checks}) == len(CHECKS)


@pytest.mark.parametrize(
    ("change", "name", "status", "words"),
    [
        ({"release": "5.10.0"}, "kernel", "fail", "6.1"),
        ({"release": "weird"}, "kernel", "fail", "6.1"),
        ({"machine": "aarch64"}, "kernel", "fail", "x86_64"),
        ({"config": None}, "kernel config", "warn", "/boot/config"),
        ({"config": {**CONFIG, "FUNCTION_TRACER": "n"}}, "kernel config", "fail", "FUNCTION_TRACER"),
        ({"config": {**CONFIG, "DYNAMIC_FTRACE_WITH_ARGS": "n"}}, "kernel config", "fail", "WITH_REGS"),
        ({"config": {**CONFIG, "KPROBES": "n"}}, "kernel config", "warn", "KPROBES"),
        ({"headers": False}, "headers", "warn", f"linux-headers-{RELEASE}"),
        ({"headers": False, "loaded": False, "module": Module()}, "headers", "fail", "cannot be built"),
        ({"module": Module()}, "khook built", "warn", "--module"),
        ({"module": Module(), "loaded": False}, "khook built", "fail", "--module"),
        ({"module": Module(Path("/k.ko"), "6.1.0 SMP ")}, "khook built", "fail", "is for 6.1.0"),
        ({"module": Module(Path("/k.ko"), None, error="torn")}, "khook built", "warn", "torn"),
        ({"loaded": False}, "khook loaded", "fail", "modprobe"),
        ({"loaded": False, "khook": Asked()}, "khook answers", "warn", "not loaded"),
        ({"khook": Asked(None, "version 2", "upgrade")}, "khook answers", "fail", "upgrade"),
        ({"lockdown": "integrity", "loaded": False}, "module signing", "fail", "sign"),
        ({"config": {**CONFIG, "MODULE_SIG_FORCE": "y"}, "loaded": False}, "module signing", "fail", "sign"),
        ({"ftrace_enabled": 0}, "ftrace", "fail", "sysctl"),
        ({"ftrace_enabled": None}, "ftrace", "warn", "FUNCTION_TRACER"),
        ({"tracefs": None}, "tracefs", "warn", "mount"),
        ({"redirected": None}, "ftrace users", "warn", "root"),
        ({"redirected": ("nvidia_unlocked_ioctl",)}, "ftrace users", "warn", "nvidia_unlocked_ioctl"),
        ({"livepatches": ("kpatch_1",)}, "ftrace users", "warn", "kpatch_1"),
        ({"cgroup": "tmpfs"}, "cgroup v2", "fail", "unified"),
        ({"cgroup": None}, "cgroup v2", "fail", "not mounted"),
        ({"cgroup_kill": False}, "cgroup v2", "fail", "cgroup.kill"),
        ({"containerd": Asked(None, "no socket", "start it")}, "containerd", "fail", "start it"),
        ({"nvml": Asked(None, "no answer", "reboot")}, "NVML", "fail", "reboot"),
        ({"euid": 1000}, "permissions", "fail", "root"),
        ({"capabilities": 1 << 19}, "permissions", "fail", "CAP_NET_ADMIN"),
        ({"namespaces": {**INITIAL_NAMESPACES, "pid": 7}}, "namespaces", "fail", "pid"),
        ({"clock_error_ns": 5_000_000}, "clock", "warn", "5000000 ns"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(
    change: dict[str, Any], name: str, status: str, words: str
) -> None:
    check = verdicts(replace(GOOD, **change))[name]
    assert check.status == status
    assert words in f"{check.detail} {check.remedy}"
    assert check.remedy or name == "khook answers"


@pytest.mark.parametrize(
    "change", [{"loaded": True}, {"loaded": False, "module": Module(Path("/k.ko"), RELEASE, True)}]
)
def test_a_signed_or_loaded_module_passes_a_lockdown(change: dict[str, Any]) -> None:
    assert verdicts(replace(GOOD, lockdown="integrity", **change))["module signing"].status == "ok"


def test_text_and_json() -> None:
    checks = judge(replace(GOOD, ftrace_enabled=0, containerd=Asked(None, "evil\x1b[2J\n", "start it")))
    text = to_text(checks)
    assert "FAIL  ftrace " in text
    assert "-> sysctl kernel.ftrace_enabled=1" in text
    assert "\x1b" not in text
    assert text.endswith("14 ok, 0 warnings, 2 failed\n")
    told = json.loads(to_json(checks))
    assert told["ok"] is False
    assert told["checks"][0] == {"name": "kernel", "status": "ok", "detail": RELEASE, "remedy": ""}
    assert json.loads(to_json(judge(GOOD)))["ok"] is True


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """An object file with the .modinfo of a kernel module."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc makes the module to read")
    source = tmp_path / "khook.c"
    source.write_text(
        'const char info[] __attribute__((section(".modinfo"))) = '
        '"license=GPL\\0vermagic=6.12.1 SMP mod_unload \\0name=khook";'
    )
    subprocess.run(["gcc", "-c", "-o", tmp_path / "khook.ko", source], check=True)
    return tmp_path / "khook.ko"


def test_a_module_file_is_read_plain_packed_and_signed(module: Path) -> None:
    want = "6.12.1 SMP mod_unload "
    assert read_module(module) == Module(module, want)
    for suffix, pack in ((".xz", lzma.compress), (".gz", gzip.compress)):
        packed = module.with_suffix(f".ko{suffix}")
        packed.write_bytes(pack(module.read_bytes()))
        assert read_module(packed) == Module(packed, want)
    module.write_bytes(module.read_bytes() + b"sig" + SIGNATURE)
    assert read_module(module) == Module(module, want, signed=True)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("khook.ko", b"", "no kernel module"),
        ("khook.ko", b"\x7fELF rubbish", "no kernel module"),
        ("khook.ko.xz", b"rubbish", "cannot be read"),
        ("khook.ko.gz", b"rubbish", "cannot be read"),
        ("khook.ko.zst", b"", "not read"),
        ("none/khook.ko", None, "cannot be read"),
    ],
)
def test_a_broken_module_file_is_told_not_raised(
    name: str, data: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    found = read_module(path)
    assert found.vermagic is None
    assert words in found.error


def put(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_facts_from_a_tree(tmp_path: Path, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    here = f"lib/modules/{collect(None, tmp_path / 'none', root=tmp_path).release}"
    put(root, f"{here}/modules.dep", "updates/dkms/khook.ko: kernel/x.ko\nkernel/other.ko:\n")
    put(root, f"{here}/build/Makefile")
    (root / here / "updates/dkms").mkdir(parents=True)
    shutil.copy(module, root / here / "updates/dkms/khook.ko")
    put(root, f"{here}/config", "CONFIG_MODULES=y\n# CONFIG_X is not set\nCONFIG_Y=m\n")
    (root / "sys/module/khook").mkdir(parents=True)
    put(root, "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    put(root, "proc/sys/kernel/ftrace_enabled", "1\n")
    put(root, "sys/kernel/tracing/README")
    put(
        root,
        "sys/kernel/tracing/enabled_functions",
        "vfs_read (1) R I     M \ttramp: 0xffff (klp_ftrace_handler+0x0/0x1)\n"
        "nvidia_unlocked_ioctl [nvidia] (1)   I     M \ttramp: 0xffff (khook_thunk+0x0/0x1 [khook])\n"
        "schedule (1) R       M \ttramp: 0xffff\n",
    )
    (root / "sys/kernel/livepatch/kpatch_1").mkdir(parents=True)
    put(
        root, "proc/self/mounts", "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
    )
    put(root, "sys/fs/cgroup/system.slice/cgroup.kill")
    put(root, "proc/self/status", "Name:\tx\nCapEff:\t0000000000081000\n")
    facts = collect(None, tmp_path / "none.sock", root=root)
    assert facts.module.path == root / here / "updates/dkms/khook.ko"
    assert facts.module.vermagic == "6.12.1 SMP mod_unload "
    assert facts.config == {"MODULES": "y", "Y": "m"}
    assert (facts.headers, facts.loaded, facts.lockdown, facts.ftrace_enabled) == (True, True, "integrity", 1)
    assert (facts.tracefs, facts.redirected, facts.livepatches) == (
        "/sys/kernel/tracing",
        ["vfs_read"],
        ["kpatch_1"],
    )
    assert (facts.cgroup, facts.cgroup_kill, facts.capabilities) == ("cgroup2", True, 1 << 12 | 1 << 19)


def test_an_empty_tree_gives_verdicts_all_the_same(tmp_path: Path) -> None:
    facts = collect(None, tmp_path / "none.sock", root=tmp_path)
    assert facts.config is None
    checks = judge(facts)
    assert len(checks) == len(CHECKS)
    assert "no socket at" in to_text(checks)


def test_containerd_s_version_is_asked_over_its_socket(tmp_path: Path) -> None:
    def version(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        return b"\x0a\x062.1.9x\x12\x04abcd"

    handler = grpc.unary_unary_rpc_method_handler(
        version, request_deserializer=bytes, response_serializer=bytes
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "containerd.services.version.v1.Version", {"Version": handler}
            ),
        )
    )
    server.add_insecure_port(f"unix://{tmp_path}/c.sock")
    server.start()
    assert ask_all(tmp_path / "c.sock").containerd == Asked(f"containerd 2.1.9x at {tmp_path}/c.sock")
    server.stop(0).wait()


def test_a_socket_that_says_nothing_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodeasks, "CONTAINERD_S", 0.5)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "c.sock"))
        silent.listen()
        found = ask_all(tmp_path / "c.sock").containerd
    assert found.value is None
    assert found.error
    assert found.remedy


def test_this_very_node(tmp_path: Path) -> None:
    checks = examine(None, tmp_path / "none.sock")
    assert {check.name for check in checks} >= {"kernel", "khook loaded", "containerd", "NVML", "clock"}
    assert next(check for check in checks if check.name == "containerd").status == "fail"
