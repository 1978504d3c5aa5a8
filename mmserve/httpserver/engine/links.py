"""Sends messages from this worker to the router, and questions about images to visual servers."""

from __future__ import annotations

from mmserve.ipc.links.channel import Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.request import AskStages, CountImageRows, EngineInbound, RequestMessage, VisualInbound


class EngineLinks:
    """Sending never blocks; messages to a dead process wait for its successor.

    A link to a visual server is made for its first question: few models have any.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._router: Sender[EngineInbound] = Sender(endpoints.router, EngineInbound)
        self._visual: dict[int, Sender[VisualInbound]] = {}

    def send(self, message: RequestMessage) -> None:
        self._router.send(message)

    def ask(self, message: AskStages) -> None:
        self._router.send(message)

    def count(self, visual_server: int, message: CountImageRows) -> None:
        if visual_server not in self._visual:
            self._visual[visual_server] = Sender(self._endpoints.visual(visual_server), VisualInbound)
        self._visual[visual_server].send(message)

    def close(self) -> None:
        self._router.close(linger_ms=200)
        for sender in self._visual.values():
            sender.close(linger_ms=200)
