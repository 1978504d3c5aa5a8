"""The ways from this worker to the engine: straight to the router, or through a visual server.

Knows which way a request goes; knows nothing of replies.
"""

from __future__ import annotations

from mmserve.ipc.channel import Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.request import AbortRequest, EngineInbound, GenerateRequest

_SPREAD = 0x9E3779B97F4A7C15
"""Of Fibonacci hashing (Knuth, volume 3, 6.4): names in equal steps, as of requests with equally many images, do not
all lead to the same place."""
Road = int | None
"""Index of a visual server, or None for the router itself."""


def encoder_for(item_id: int, visual_workers: int) -> int:
    """The visual server that encodes an image, the same one as long as the image is in the arena."""
    return (item_id * _SPREAD % (1 << 64) >> 32) % visual_workers


class EngineLinks:
    """One sender for each way. Sending never blocks; what waits for a dead process reaches its successor."""

    def __init__(self, endpoints: Endpoints, visual_workers: int) -> None:
        self._router: Sender[EngineInbound] = Sender(endpoints.router, EngineInbound)
        self._visual: list[Sender[EngineInbound]] = [
            Sender(endpoints.visual(index), EngineInbound) for index in range(visual_workers)
        ]

    def choose(self, request: GenerateRequest) -> Road:
        """A request with an embedding to wait for goes where that image always goes, so that work is merged."""
        missing = (span.item_id for span in request.spans if span.data is not None)
        item_id = next(missing, None)
        return None if item_id is None else encoder_for(item_id, len(self._visual))

    def send(self, road: Road, message: GenerateRequest | AbortRequest) -> None:
        sender = self._router if road is None else self._visual[road]
        sender.send(message)

    def close(self) -> None:
        for sender in (self._router, *self._visual):
            sender.close(linger_ms=200)
