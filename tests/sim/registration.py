# SPDX-License-Identifier: Apache-2.0
"""The device plugin's socket, and its registration with kubelet."""

from __future__ import annotations

import logging
from concurrent import futures
from pathlib import Path

import grpc

from tests.sim.device_plugin_pb import device_plugin_pb2 as pb
from tests.sim.offer import Offer
from tests.sim.servicer import API_VERSION, OPTIONS, Plugin, serialize

CALL_LIMIT_S = 10.0
# kubelet is asked each second: so for a minute after each of its starts.
ATTEMPTS = 60
_WORKERS = 8

log = logging.getLogger("device-plugin")


class PluginError(Exception):
    """The plugin cannot serve; the text says what an operator can do."""


class Service:
    """The plugin at its socket, known to kubelet; anew after each start of kubelet, which clears its folder.

    `attempts` bounds the refusals in a row.
    """

    def __init__(self, offer: Offer, kubelet_dir: Path, attempts: int = ATTEMPTS) -> None:
        self.plugin = Plugin(offer)
        self._offer = offer
        self._kubelet = kubelet_dir / "kubelet.sock"
        self._socket = kubelet_dir / f"{offer.resource.replace('/', '-')}.sock"
        self._attempts = attempts
        self._left = attempts
        self._server: grpc.Server | None = None
        self._registered_with: tuple[int, int] | None = None

    def tend(self) -> None:
        """Serve and register if either is due; called each second.

        Raises PluginError after `attempts` refusals in a row.
        """
        kubelet = _identity(self._kubelet)
        if self._server is None or not self._socket.exists():
            self._serve()
            self._registered_with = None
        if kubelet is None:
            self._left = self._attempts  # kubelet is away: that is no refusal
        elif kubelet != self._registered_with:
            self._register(kubelet)

    def stop(self) -> None:
        """Leave kubelet."""
        self.plugin.end()
        self._stop_server()
        self._socket.unlink(missing_ok=True)

    def _serve(self) -> None:
        self._stop_server()
        self._socket.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(_WORKERS))
        server.add_generic_rpc_handlers((self.plugin.handler(),))
        server.add_insecure_port(f"unix://{self._socket}")
        server.start()
        self._server = server

    def _stop_server(self) -> None:
        if self._server:
            self._server.stop(None).wait()
        self._server = None

    def _register(self, kubelet: tuple[int, int]) -> None:
        request = pb.RegisterRequest(
            version=API_VERSION,
            endpoint=self._socket.name,
            resource_name=self._offer.resource,
            options=OPTIONS,
        )
        try:
            with grpc.insecure_channel(f"unix://{self._kubelet}") as channel:
                call = channel.unary_unary(
                    f"/{API_VERSION}.Registration/Register", serialize, pb.Empty.FromString
                )
                call(request, timeout=CALL_LIMIT_S)
        except grpc.RpcError as error:
            self._refused(error)
            return
        self._registered_with, self._left = kubelet, self._attempts
        log.info("registered %s with kubelet: %d devices", self._offer.resource, len(self._offer.cards))

    def _refused(self, error: grpc.RpcError) -> None:
        self._left -= 1
        if self._left <= 0:
            raise PluginError(f"kubelet refused {self._attempts} times: {error}") from error
        log.warning("kubelet refused the registration, %d attempts left: %s", self._left, error)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which socket is at `path`: kubelet makes a new one each time it starts, an inode may be used again."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
