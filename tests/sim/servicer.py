# SPDX-License-Identifier: Apache-2.0
"""The methods of kubelet's device plugin API v1beta1."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from tests.sim.device_plugin_pb import device_plugin_pb2 as pb
from tests.sim.offer import Offer, allocation
from tests.sim.placement import Card, prefer

API_VERSION = "v1beta1"
OPTIONS = pb.DevicePluginOptions(get_preferred_allocation_available=True)


class Plugin:
    """The API's methods. Health changes wake every ListAndWatch stream."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._cards = {card.uuid: card for card in offer.cards}
        self._changed = threading.Condition()
        self._sick: set[str] = set()
        self._version = 0
        self._ended = False

    def set_sick(self, uuid: str) -> None:
        """Show a device as Unhealthy from now on."""
        with self._changed:
            self._sick.add(uuid)
            self._version += 1
            self._changed.notify_all()

    def end(self) -> None:
        """End every stream."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service for a gRPC server."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "GetDevicePluginOptions": (unary, self.options, pb.Empty),
            "ListAndWatch": (stream, self.list_and_watch, pb.Empty),
            "GetPreferredAllocation": (unary, self.preferred, pb.PreferredAllocationRequest),
            "Allocate": (unary, self.allocate, pb.AllocateRequest),
            "PreStartContainer": (unary, self.pre_start, pb.PreStartContainerRequest),
        }
        handlers = {
            name: kind(method, request_deserializer=request.FromString, response_serializer=serialize)
            for name, (kind, method, request) in methods.items()
        }
        return grpc.method_handlers_generic_handler(f"{API_VERSION}.DevicePlugin", handlers)

    def options(self, request: Any, context: grpc.ServicerContext) -> Any:
        return OPTIONS

    def list_and_watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        def wake() -> None:
            with self._changed:
                self._changed.notify_all()

        context.add_callback(wake)
        shown = -1
        while True:
            with self._changed:
                while self._version == shown and context.is_active() and not self._ended:
                    self._changed.wait()
                if self._ended or not context.is_active():
                    return
                shown, sick = self._version, frozenset(self._sick)
            yield pb.ListAndWatchResponse(devices=[_device(card, sick) for card in self._offer.cards])

    def preferred(self, request: Any, context: grpc.ServicerContext) -> Any:
        answers = []
        for one in request.container_requests:
            try:
                chosen = prefer(
                    self._cards, one.available_device_ids, one.must_include_device_ids, one.allocation_size
                )
            except (KeyError, ValueError) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"GetPreferredAllocation: {error}")
            answers.append(pb.ContainerPreferredAllocationResponse(device_ids=chosen))
        return pb.PreferredAllocationResponse(container_responses=answers)

    def allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        answers = []
        for one in request.container_requests:
            try:
                answers.append(allocation(self._offer, list(one.devices_ids)))
            except KeyError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"Allocate: unknown device {error}")
        return pb.AllocateResponse(container_responses=answers)

    def pre_start(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.PreStartContainerResponse()


def _device(card: Card, sick: frozenset[str]) -> Any:
    nodes = [pb.NUMANode(ID=card.numa)] if card.numa >= 0 else []
    return pb.Device(
        ID=card.uuid,
        health="Unhealthy" if card.uuid in sick else "Healthy",
        topology=pb.TopologyInfo(nodes=nodes),
    )


def serialize(message: Any) -> bytes:
    """Return a message's bytes; the stubs have no types."""
    return bytes(message.SerializeToString())
