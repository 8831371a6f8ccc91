# SPDX-License-Identifier: Apache-2.0
"""The stubs are those of the proto file, and the client gets along with a server of the same messages.

A real containerd is asked in the guest tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spotgpu_agent.containerd import FILTERS, Containerd, _cgroups_path
from spotgpu_agent.errors import ContainerdError
from tests.unit.agent.helper import in_loop, until

AGENT = Path(__file__).parents[3] / "agent"
STUBS = AGENT / "spotgpu_agent" / "containerd_pb"


def test_the_stubs_are_generated_from_the_proto_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{AGENT}", f"--python_out={tmp_path}"]
    command += [f"--pyi_out={tmp_path}", str(STUBS / "containerd.proto")]
    subprocess.run(command, check=True, timeout=60)
    made = tmp_path / "spotgpu_agent" / "containerd_pb"
    spdx, _, committed = (STUBS / "containerd_pb2.py").read_text().partition("\n")
    assert "Apache-2.0" in spdx
    assert committed == (made / "containerd_pb2.py").read_text()
    assert (STUBS / "containerd_pb2.pyi").read_text() == (made / "containerd_pb2.pyi").read_text()


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"linux": {"cgroupsPath": "/default/x"}}, "/default/x"),
        ({"linux": {}}, ""),
        ({"linux": None}, ""),
        ({}, ""),
    ],
)
def test_the_cgroups_path_of_a_specification(spec: dict[str, Any], path: str) -> None:
    assert _cgroups_path(json.dumps(spec).encode()) == path
    assert _cgroups_path(b"") == ""


class Server:
    """A containerd of two containers and as many events as are told."""

    def __init__(self, socket: Path) -> None:
        import grpc

        from spotgpu_agent.containerd_pb import containerd_pb2 as pb

        self.calls: list[tuple[str, Any]] = []
        self.subscriptions = 0
        self.pb = pb
        self.server = grpc.server(ThreadPoolExecutor(4))
        services: dict[str, dict[str, Any]] = {
            "version.v1.Version": {"Version": self.one(pb.Empty, self.version)},
            "containers.v1.Containers": {"List": self.one(pb.ListContainersRequest, self.containers)},
            "tasks.v1.Tasks": {
                "List": self.one(pb.ListTasksRequest, self.tasks),
                "Kill": self.one(pb.KillRequest, self.kill),
                "Delete": self.one(pb.DeleteTaskRequest, self.delete),
            },
            "events.v1.Events": {
                "Subscribe": grpc.unary_stream_rpc_method_handler(
                    self.subscribe,
                    request_deserializer=pb.SubscribeRequest.FromString,
                    response_serializer=lambda message: message.SerializeToString(),
                )
            },
        }
        for name, methods in services.items():
            handler = grpc.method_handlers_generic_handler(f"containerd.services.{name}", methods)
            self.server.add_generic_rpc_handlers((handler,))
        self.server.add_insecure_port(f"unix://{socket}")
        self.server.start()

    def one(self, request: Any, answer: Any) -> Any:
        import grpc

        def told(message: Any, context: Any) -> Any:
            namespace = dict(context.invocation_metadata())["containerd-namespace"]
            self.calls.append((namespace, message))
            return answer(message, context)

        return grpc.unary_unary_rpc_method_handler(
            told,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def version(self, _request: Any, _context: Any) -> Any:
        return self.pb.VersionResponse(version="1.7.99")

    def containers(self, _request: Any, _context: Any) -> Any:
        made = [self.pb.Container(id=name, labels={"app": name}) for name in ("one", "two", "dead")]
        return self.pb.ListContainersResponse(containers=made)

    def tasks(self, _request: Any, _context: Any) -> Any:
        import os

        me, pb = os.getpid(), self.pb
        return pb.ListTasksResponse(
            tasks=[
                pb.Process(id="one", pid=me, status=pb.RUNNING),
                pb.Process(id="two", pid=me, status=pb.CREATED),
                pb.Process(id="dead", pid=me, status=pb.STOPPED),
            ]
        )

    def kill(self, _request: Any, context: Any) -> Any:
        import grpc

        context.abort(grpc.StatusCode.NOT_FOUND, "process already finished")

    def delete(self, request: Any, context: Any) -> Any:
        import grpc

        if request.container_id == "busy":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "task must be stopped")
        return self.pb.DeleteResponse(id=request.container_id)

    def subscribe(self, request: Any, _context: Any) -> Any:
        self.subscriptions += 1
        assert tuple(request.filters) == FILTERS
        yield self.pb.Envelope(namespace="other", topic="/tasks/start")
        yield self.pb.Envelope(namespace="ns", topic="/tasks/exit")
        # Then the stream ends, as when containerd restarts.


@in_loop
async def test_containers_and_tidying(tmp_path: Path) -> None:
    server = Server(tmp_path / "sock")
    client = Containerd(str(tmp_path / "sock"), "ns", lambda name, labels: labels["app"] != "two")
    assert await client.connect() == "1.7.99"
    one, two, dead = await client.containers()
    assert (one.id, one.labels, one.running) == ("one", {"app": "one"}, bool(one.cgroup))
    assert one.host_pids
    assert two.pid == 0, "not wanted, so not looked up"
    assert not dead.running
    await client.tidy("one")
    with pytest.raises(ContainerdError, match="task must be stopped"):
        await client.tidy("busy")
    assert {namespace for namespace, _ in server.calls} == {"ns"}
    await client.close()
    server.server.stop(0)


@in_loop
async def test_the_event_stream_is_opened_again_when_it_ends(tmp_path: Path) -> None:
    import asyncio

    server = Server(tmp_path / "sock")
    client = Containerd(str(tmp_path / "sock"), "ns", lambda name, labels: True)
    await client.connect()
    seen: list[str] = []
    lost: list[int] = []
    task = asyncio.create_task(client.follow(seen.append, lambda: lost.append(1)))

    async def twice() -> bool:
        return server.subscriptions >= 2 and seen.count("exit") >= 2

    await until(twice)
    assert lost
    assert "start" not in seen, "that was another namespace's"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()
    server.server.stop(0)


@in_loop
async def test_nobody_at_the_socket(tmp_path: Path) -> None:
    client = Containerd(str(tmp_path / "none"), "ns", lambda name, labels: True)
    with pytest.raises(ContainerdError, match="Version") as caught:
        await client.connect()
    assert caught.value.remedy
    await client.close()
