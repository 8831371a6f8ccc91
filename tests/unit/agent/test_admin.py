# SPDX-License-Identifier: Apache-2.0
"""The admin socket, asked the way `spotgpu` asks it, and by others."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spotgpu import admin as client
from spotgpu.errors import SpotgpuError, UsageError
from spotgpu_agent.admin import AdminSocket
from spotgpu_agent.events import Admin, AdminAction
from tests.unit.agent.helper import in_loop


class Node:
    """A socket and what came through it."""

    def __init__(self, folder: Path) -> None:
        self.told: list[Admin] = []
        self.seen: list[str] = []
        self.path = folder / "admin.sock"
        self.socket = AdminSocket(folder, ["dev"], self.status, self.told.append, self.seen.append)

    async def status(self) -> dict[str, object]:
        return {"devices": []}

    async def ask(self, command: str, **arguments: str) -> dict[str, object]:
        return await asyncio.to_thread(lambda: client.ask(command, path=self.path, **arguments))  # type: ignore[arg-type]

    async def raw(self, data: bytes) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(data)
        reply = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return dict(json.loads(reply))


root = pytest.mark.skipif(os.getuid() != 0, reason="only root is answered")


@root
@in_loop
async def test_commands(tmp_path: Path) -> None:
    node = Node(tmp_path / "run")
    await node.socket.start()
    assert stat.S_IMODE(node.path.stat().st_mode) == 0o600
    assert await node.ask("status") == {"devices": []}
    assert await node.ask("evict", owner="dev") == {"devices": []}
    await node.ask("return", owner="dev")
    await node.ask("lend", owner="dev")
    assert [one.action for one in node.told] == [AdminAction.EVICT, AdminAction.RETURN, AdminAction.LEND]
    assert node.seen == ["status", "evict", "return", "lend"]
    with pytest.raises(SpotgpuError, match="no owner 'nobody'") as caught:
        await node.ask("evict", owner="nobody")
    assert (caught.value.field, caught.value.remedy) == ("owner", "one of dev")
    with pytest.raises(SpotgpuError, match="no command 'dance'"):
        await node.ask("dance")
    await node.socket.stop()
    assert not node.path.exists()


@root
@in_loop
async def test_nonsense_is_answered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.socket.start()
    for data in (b"\n", b"{\n", b"[]\n", b"\xff\xfe\n", b'"x"\n', b"x" * 70_000 + b"\n"):
        reply = await node.raw(data)
        assert "error" in reply
        assert reply["remedy"]
    assert await node.ask("status") == {"devices": []}
    await node.socket.stop()


@root
@in_loop
async def test_only_root_is_answered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.socket.start()
    opened = {node.path: 0o666, tmp_path: 0o755, tmp_path.parent: 0o755, tmp_path.parent.parent: 0o755}
    for path, mode in opened.items():  # even if somebody opened it up
        os.chmod(path, mode)  # noqa: PTH101
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        's.sendall(b\'{"command": "status"}\\n\'); print(s.recv(999).decode())'
    )
    command = ["/usr/bin/python3", "-S", "-c", code, str(node.path)]  # one that everybody may run
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, user=65534, group=65534, timeout=30
    )
    assert "only root is answered" in done.stdout, done.stderr
    assert node.seen == []
    await node.socket.stop()


@in_loop
async def test_another_agent_is_not_pushed_aside_but_a_dead_ones_socket_is(tmp_path: Path) -> None:
    first, second = Node(tmp_path), Node(tmp_path)
    await first.socket.start()
    with pytest.raises(UsageError, match="another agent"):
        await second.socket.start()
    await asyncio.sleep(0.1)  # the first one gets to see that the second only knocked
    await first.socket.stop()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(first.path))
    await second.socket.start()
    await second.socket.stop()
