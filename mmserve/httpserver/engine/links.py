"""Sends messages from this worker to the engine: directly to the router, or through a visual server."""

from __future__ import annotations

from mmserve.ipc.channel import Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.request import AbortRequest, CountImageRows, EngineInbound, GenerateRequest, VisualInbound

_MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, for Fibonacci hashing (Knuth, volume 3, 6.4). Item ids often grow in equal steps (requests with
equally many images); taken modulo the number of visual servers they could all select the same one."""
Destination = int | None
"""Index of a visual server, or None for the router itself."""


def encoder_for(item_id: int, visual_workers: int) -> int:
    """Index of the visual server that encodes an image. The same for as long as the image is in the arena."""
    return (item_id * _MULTIPLIER % (1 << 64) >> 32) % visual_workers


class EngineLinks:
    """One sender for each destination. Sending never blocks; messages to a dead process wait for its successor."""

    def __init__(self, endpoints: Endpoints, visual_workers: int) -> None:
        self._router: Sender[EngineInbound] = Sender(endpoints.router, EngineInbound)
        self._visual: list[Sender[VisualInbound]] = [
            Sender(endpoints.visual(index), VisualInbound) for index in range(visual_workers)
        ]

    def choose(self, request: GenerateRequest) -> Destination:
        """The visual server of the first image without an embedding, or the router if there is none.

        An image always goes to the same visual server, so that requests for it at the same time share its encoding.
        """
        missing = (span.item_id for span in request.spans if span.data is not None)
        item_id = next(missing, None)
        return None if item_id is None else encoder_for(item_id, len(self._visual))

    def send(self, destination: Destination, message: GenerateRequest | AbortRequest) -> None:
        if destination is None:
            self._router.send(message)
        else:
            self._visual[destination].send(message)

    def count(self, visual_server: int, message: CountImageRows) -> None:
        self._visual[visual_server].send(message)

    def close(self) -> None:
        self._router.close(linger_ms=200)
        for sender in self._visual:
            sender.close(linger_ms=200)
