# SPDX-License-Identifier: Apache-2.0
"""containerd over its socket: which containers run, in which cgroup, and telling it that one is dead.

The only import of grpc and of the stubs, and a late one (connect()): it costs a good part of a second, and
must be paid before anything is armed, never in a hand-back.

Changes come by containerd's event stream; each is only a reason to read the state anew, so a lost or repeated
event does no harm, and a slow poll covers a stream that is silently dead.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from spotgpu_agent import cgroup
from spotgpu_agent.errors import ContainerdError
from spotgpu_agent.resolve import Container

if TYPE_CHECKING:
    import grpc.aio

CALL_S: Final = 5.0
SUBSCRIBED_S: Final = 1.0
SIGKILL: Final = 9
# Topics that change what list() says. A task's creation counts: its cgroup exists before its program runs.
FILTERS: Final = ('topic~="^/tasks/(create|start|exit|delete|paused|resumed)"', 'topic~="^/containers/"')
KINDS: Final = {
    "/tasks/create": "create",
    "/tasks/start": "start",
    "/tasks/exit": "exit",
    "/tasks/delete": "delete",
}
RECONNECT_S: Final = (0.1, 0.5, 2.0, 5.0)  # then every 5 s: a node's containerd does come back

_log = logging.getLogger(__name__)


class Containerd:
    """A connection to one namespace of a containerd.

    Args:
        socket: its path.
        namespace: `default`, `k8s.io`.
        wanted: whether a container (id, labels) is of interest: only those are looked up in /proc.
    """

    def __init__(self, socket: str, namespace: str, wanted: Callable[[str, dict[str, str]], bool]) -> None:
        self._socket = socket
        self._metadata = (("containerd-namespace", namespace),)
        self._wanted = wanted
        self._channel: grpc.aio.Channel | None = None
        self._init_pidns = 0

    async def connect(self) -> str:
        """Connect; the version containerd answers with.

        Raises:
            ContainerdError: nobody answers.
        """
        # grpc's own log lines would stand between our JSON lines.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        import grpc
        import grpc.aio

        from spotgpu_agent.containerd_pb import containerd_pb2 as pb

        options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20)]
        self._channel = grpc.aio.insecure_channel(f"unix://{self._socket}", options=options)
        self._init_pidns = _pidns("self")
        reply = await self._call("version.v1.Version/Version", pb.Empty(), "VersionResponse")
        return str(reply.version)

    async def containers(self) -> list[Container]:
        """All containers of the namespace; the cgroup of those that run and are wanted.

        Raises:
            ContainerdError: containerd does not answer.
        """
        from spotgpu_agent.containerd_pb import containerd_pb2 as pb

        listed = await self._call(
            "containers.v1.Containers/List", pb.ListContainersRequest(), "ListContainersResponse"
        )
        tasks = await self._call("tasks.v1.Tasks/List", pb.ListTasksRequest(), "ListTasksResponse")
        dead = (pb.STOPPED, pb.UNKNOWN)
        pids = {task.id or task.container_id: task.pid for task in tasks.tasks if task.status not in dead}
        return [self._container(one, pids.get(one.id, 0)) for one in listed.containers]

    def _container(self, one: Any, pid: int) -> Container:
        labels = dict(one.labels)
        if not pid or not self._wanted(one.id, labels):
            return Container(one.id, labels)
        path = cgroup.container_path(cgroup.path_of(pid), _cgroups_path(one.spec.value))
        number = cgroup.id_of(path) if path else 0
        return Container(one.id, labels, pid, number, path, _pidns(pid) == self._init_pidns)

    async def follow(self, changed: Callable[[str], None], lost: Callable[[], None]) -> None:
        """Say whenever containers() may say something new. Never returns; reconnects when the stream breaks.

        Args:
            changed: called with the kind of change; `other` also when a stream has just been opened, for what
                happened before it.
            lost: called whenever the stream breaks.
        """
        tries = 0
        while True:
            # containerd does not say when a subscription stands, so look once it surely does.
            later = asyncio.get_running_loop().call_later(SUBSCRIBED_S, changed, "other")
            try:
                async for topic in self._events():
                    tries = 0
                    changed(KINDS.get(topic, "other"))
            except ContainerdError as error:
                _log.warning(
                    "the event stream of containerd broke", extra={"why": error.message, "tries": tries}
                )
            finally:
                later.cancel()
            lost()
            await asyncio.sleep(RECONNECT_S[min(tries, len(RECONNECT_S) - 1)])
            tries += 1

    async def _events(self) -> AsyncIterator[str]:
        import grpc

        from spotgpu_agent.containerd_pb import containerd_pb2 as pb

        subscribe = self._open.unary_stream(
            "/containerd.services.events.v1.Events/Subscribe",
            request_serializer=pb.SubscribeRequest.SerializeToString,
            response_deserializer=pb.Envelope.FromString,
        )
        namespace = self._metadata[0][1]
        try:
            async for envelope in subscribe(pb.SubscribeRequest(filters=FILTERS), metadata=self._metadata):
                if envelope.namespace == namespace:
                    yield envelope.topic
        except grpc.aio.AioRpcError as error:
            raise ContainerdError(error.details() or str(error.code()), self._socket) from error

    async def tidy(self, container: str) -> None:
        """The container's processes are gone: have containerd kill and delete its task. Repeats are harmless.

        Raises:
            ContainerdError: it refused.
        """
        from spotgpu_agent.containerd_pb import containerd_pb2 as pb

        kill = pb.KillRequest(container_id=container, signal=SIGKILL, all=True)
        await self._call("tasks.v1.Tasks/Kill", kill, "Empty", harmless=("NOT_FOUND", "FAILED_PRECONDITION"))
        delete = pb.DeleteTaskRequest(container_id=container)
        await self._call("tasks.v1.Tasks/Delete", delete, "DeleteResponse", harmless=("NOT_FOUND",))

    @property
    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise ContainerdError("not connected", self._socket)
        return self._channel

    async def _call(self, method: str, request: Any, reply: str, harmless: Iterable[str] = ()) -> Any:
        import grpc

        from spotgpu_agent.containerd_pb import containerd_pb2 as pb

        call = self._open.unary_unary(
            f"/containerd.services.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(pb, reply).FromString,
        )
        try:
            return await call(request, metadata=self._metadata, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            if error.code().name in harmless:
                return None
            remedy = "is containerd running, and is this its socket?"
            message = f"{method}: {error.details() or error.code().name}"
            raise ContainerdError(message, self._socket, remedy) from error

    async def close(self) -> None:
        """Disconnect."""
        if self._channel is not None:
            await self._channel.close()


def _cgroups_path(spec: bytes) -> str:
    """`linux.cgroupsPath` of an OCI specification; empty when it has none."""
    try:
        linux = json.loads(spec).get("linux") or {}
    except ValueError:
        return ""
    return str(linux.get("cgroupsPath") or "")


def _pidns(pid: int | str) -> int:
    """The pid namespace's inode number; 0 when the process is gone."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino  # noqa: PTH116 - the link's target is no path
    except OSError:
        return 0
