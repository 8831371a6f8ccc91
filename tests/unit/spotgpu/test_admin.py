# SPDX-License-Identifier: Apache-2.0
"""The client against real sockets; the agent's end has its own tests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotgpu import admin, status
from spotgpu.errors import SpotgpuError

Serve = Callable[[bytes | None], Path]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A socket that answers one request with these bytes (None: with silence) and keeps what it was asked."""
    path = tmp_path / "admin.sock"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    threads = []

    def start(answer: bytes | None) -> Path:
        def answer_one() -> None:
            with listening.accept()[0] as connection:
                path.with_suffix(".asked").write_bytes(connection.recv(65536))
                if answer is None:
                    connection.recv(1)  # until the client has enough
                else:
                    connection.sendall(answer)

        threads.append(threading.Thread(target=answer_one))
        threads[-1].start()
        return path

    yield start
    for thread in threads:
        thread.join(10)
    listening.close()


def test_one_line_there_and_one_back(serve: Serve) -> None:
    path = serve(b'{"result": {"node": "n1"}}\n')
    assert admin.ask("evict", path=path, owner="dev\nbox") == {"node": "n1"}
    asked = path.with_suffix(".asked").read_bytes()
    assert asked.endswith(b"\n")
    assert asked.count(b"\n") == 1
    assert json.loads(asked) == {"command": "evict", "owner": "dev\nbox"}


def test_an_answer_of_many_pieces(serve: Serve) -> None:
    big = {"result": {"devices": ["GPU"] * 50_000}}
    assert admin.ask("status", path=serve(json.dumps(big).encode() + b"\n")) == big["result"]


def test_a_refusal_keeps_field_and_remedy(serve: Serve) -> None:
    path = serve(b'{"error": "no such owner", "field": "owner", "remedy": "see status"}\n')
    with pytest.raises(SpotgpuError) as caught:
        admin.ask("evict", path=path)
    assert not isinstance(caught.value, admin.NoAgent)
    assert str(caught.value) == "owner: no such owner (see status)"


@pytest.mark.parametrize("answer", [b"", b"half", b"[]\n", b"{}\n", b'{"result": 7}\n', b"\xff\n"])
def test_what_is_no_answer(answer: bytes, serve: Serve) -> None:
    with pytest.raises(admin.NoAgent, match="answer"):
        admin.ask("status", path=serve(answer))


def test_silence_has_a_limit(serve: Serve) -> None:
    with pytest.raises(admin.NoAgent, match=r"did not answer in 0\.2 s"):
        admin.ask("status", path=serve(None), timeout_s=0.2)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(admin.NoAgent, match="no agent runs here"):
        admin.ask("status", path=tmp_path / "none.sock")
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as once:
        once.bind(str(dead))
    with pytest.raises(admin.NoAgent, match="the agent has ended"):
        admin.ask("status", path=dead)
    with pytest.raises(admin.NoAgent, match="cannot be asked"):
        admin.ask("status", path=tmp_path / ("x" * 200))


def test_status_shows_what_the_agent_says(serve: Serve) -> None:
    told = {
        "node": "n1",
        "ready": True,
        "gates": [],
        "holds": [{"pid": 7, "comm": "python\x1b[2J", "odd": 1}],
        "counters": {"returns": 3},
        "devices": [{"state": "lent", "device": "GPU-1"}],
    }
    found = status.gather(serve(json.dumps({"result": told}).encode() + b"\n"))
    text = found.to_text()
    assert "node   n1" in text
    assert "GATES: none" in text
    assert "COMM           PID  ODD\npython\\x1b[2J  7    1" in text
    assert text.index("DEVICES (1)") < text.index("GATES")
    assert "returns  3" in text
    assert json.loads(found.to_json()) == {"agent": told}


def test_status_without_an_agent_says_so_and_asks_khook(tmp_path: Path) -> None:
    found = status.gather(tmp_path / "none.sock")
    assert found.agent is None
    assert "no agent answers" in found.to_text()
    told = json.loads(found.to_json())
    assert told["agent"] is None
    assert told["agent_error"]["remedy"]
    assert (told["khook"] is None) != (told["khook_error"] is None)
