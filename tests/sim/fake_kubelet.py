# SPDX-License-Identifier: Apache-2.0
"""kubelet's side of the device plugin API: takes registrations, and calls the plugin that registered."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.sim.device_plugin_pb import device_plugin_pb2 as pb
from tests.sim.servicer import API_VERSION, serialize

LIMIT_S = 60.0


class FakeKubelet:
    """A kubelet in `folder`, with `kubelet.sock` while it runs. `refuse`: turn every registration down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refuse = False
        self.registrations: queue.Queue[Any] = queue.Queue()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Start as kubelet does: every socket in its folder goes, its own is made."""
        for path in self.folder.glob("*.sock"):
            path.unlink()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, request_deserializer=pb.RegisterRequest.FromString, response_serializer=serialize
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(f"{API_VERSION}.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix://{self.folder / 'kubelet.sock'}")
        self._server.start()

    def stop(self) -> None:
        """Stop; the socket goes."""
        if self._server:
            self._server.stop(None).wait()
        (self.folder / "kubelet.sock").unlink(missing_ok=True)

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.refuse:
            context.abort(grpc.StatusCode.INTERNAL, "not now")
        self.registrations.put(request)
        return pb.Empty()

    @contextmanager
    def plugin(self, endpoint: str) -> Iterator[PluginCalls]:
        """Connect to the plugin at `endpoint`, a name in the folder."""
        with grpc.insecure_channel(f"unix://{self.folder / endpoint}") as channel:
            yield PluginCalls(channel)


class PluginCalls:
    """Calls of a registered plugin. All raise grpc.RpcError."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def watch(self) -> Iterator[dict[str, tuple[str, list[int]]]]:
        """ListAndWatch: each list as UUID -> (health, NUMA nodes)."""
        path = f"/{API_VERSION}.DevicePlugin/ListAndWatch"
        call = self._channel.unary_stream(path, serialize, pb.ListAndWatchResponse.FromString)
        for response in call(pb.Empty(), timeout=LIMIT_S, wait_for_ready=True):
            yield {d.ID: (d.health, [node.ID for node in d.topology.nodes]) for d in response.devices}

    def options(self) -> Any:
        return self._call("GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)

    def preferred(self, available: list[str], must: list[str], size: int) -> list[str]:
        one = pb.ContainerPreferredAllocationRequest(
            available_device_ids=available, must_include_device_ids=must, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[one])
        response = self._call("GetPreferredAllocation", request, pb.PreferredAllocationResponse)
        return list(response.container_responses[0].device_ids)

    def allocate(self, *containers: list[str]) -> list[Any]:
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=uuids) for uuids in containers]
        )
        return list(self._call("Allocate", request, pb.AllocateResponse).container_responses)

    def _call(self, name: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(
            f"/{API_VERSION}.DevicePlugin/{name}", serialize, response.FromString
        )
        return call(request, timeout=LIMIT_S, wait_for_ready=True)
