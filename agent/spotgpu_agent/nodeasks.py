# SPDX-License-Identifier: Apache-2.0
"""Asks, for the doctor, what may be away, refuse or hang: khook, containerd, NVML. Each has a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spotgpu.errors import SpotgpuError
from spotgpu_agent.nvml import Nvml

KHOOK_S: Final = 10.0
CONTAINERD_S: Final = 10.0
NVML_S: Final = 60.0
VERSION_METHOD: Final = "/containerd.services.version.v1.Version/Version"


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer, or why there is none.

    Attributes:
        value: the answer, in words; None when there is none.
        error: why there is none.
        remedy: what to do about it.
    """

    value: str | None = None
    error: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """What each of them said."""

    khook: Asked
    containerd: Asked
    nvml: Asked


def ask_all(containerd: Path) -> Answers:
    """Ask all three; takes as long as the slowest, at most NVML_S.

    Args:
        containerd: its socket.
    """
    return asyncio.run(_ask_all(containerd))


async def _ask_all(containerd: Path) -> Answers:
    return Answers(
        *await asyncio.gather(
            _limited(_khook(), KHOOK_S, "unload and load it again: rmmod khook && modprobe khook"),
            _limited(_containerd(containerd), CONTAINERD_S, "restart containerd"),
            _limited(
                _nvml(), NVML_S, "see dmesg for an Xid; a GPU that fell off the bus blocks NVML until reboot"
            ),
        )
    )


async def _limited(question: Awaitable[Asked], limit_s: float, remedy: str) -> Asked:
    try:
        async with asyncio.timeout(limit_s):
            return await question
    except TimeoutError:
        return Asked(error=f"no answer in {limit_s:g} s", remedy=remedy)


async def _khook() -> Asked:
    from spotgpu_khook.client import Khook

    try:
        async with await Khook.connect() as khook:
            stats = await khook.stats()
    except SpotgpuError as error:
        return Asked(error=error.message, remedy=error.remedy or "")
    agent = "an agent is attached" if stats.agent_portid else "no agent is attached"
    held = stats.now.get("holds", 0)
    return Asked(f"ABI {stats.version}, {agent}, {held} calls held")


async def _containerd(path: Path) -> Asked:
    if not await asyncio.to_thread(path.is_socket):
        return Asked(
            error=f"no socket at {path}", remedy="start containerd, or name its socket by --containerd"
        )
    # Heavy, and only this needs it.
    import grpc
    import grpc.aio

    # grpc would take the socket's path for the authority, which HTTP/2 servers in Go refuse (grpc#38142).
    options = [("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix://{path}", options=options) as channel:
        version = channel.unary_unary(VERSION_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            reply = await version(b"", timeout=CONTAINERD_S)
        except grpc.aio.AioRpcError as error:
            return Asked(error=f"{path}: {error.details()}", remedy="is it containerd, and may you open it?")
    return Asked(f"containerd {_first_string(reply)} at {path}")


def _first_string(message: bytes) -> str:
    """Field 1 of a protobuf message when it is a string shorter than 128 bytes: VersionResponse.version."""
    if len(message) < 2 or message[0] != 0x0A or message[1] >= 0x80:
        return "of unknown version"
    return message[2 : 2 + message[1]].decode("utf-8", "replace")


async def _nvml() -> Asked:
    nvml = Nvml("doctor", lambda: None)
    try:
        inventory = await nvml.start()
    except SpotgpuError as error:
        return Asked(
            error=error.message.removeprefix("doctor: "),
            remedy="install the driver and its libnvidia-ml.so.1",
        )
    finally:
        await nvml.close()
    if not inventory.gpus:
        return Asked(error=f"driver {inventory.driver} sees no GPU", remedy="see nvidia-smi -L and dmesg")
    names = ", ".join(sorted({gpu.name for gpu in inventory.gpus}))
    return Asked(f"driver {inventory.driver}, {len(inventory.gpus)} devices ({names})")
