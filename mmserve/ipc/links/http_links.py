"""Links to HTTP workers: made for the first message, dropped when the worker has died."""

from __future__ import annotations

from mmserve.ipc.links.channel import Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.reply import HttpInbound


class HttpLinks:
    """Senders to HTTP workers, by their index. Each is made for its first message and closed when its worker is gone.

    A sender whose peer is missing tries to connect 30 times a second, which an idle process would do for ever.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._senders: dict[int, Sender[HttpInbound]] = {}

    @property
    def open_links(self) -> frozenset[int]:
        """The workers that have a link."""
        return frozenset(self._senders)

    def send(self, worker: int, message: HttpInbound) -> None:
        """Send without blocking. Messages to a worker that does not listen yet wait for it."""
        if worker not in self._senders:
            self._senders[worker] = Sender(self._endpoints.http(worker), HttpInbound)
        self._senders[worker].send(message)

    def drop(self, worker: int) -> None:
        """The worker is gone, and with it what was sent and has not arrived. Its successor gets a new link."""
        if (sender := self._senders.pop(worker, None)) is not None:
            sender.close()

    def close(self, *, linger_ms: int = 0) -> None:
        """Close all links. Messages that were sent last still go out, for at most ``linger_ms``."""
        for sender in self._senders.values():
            sender.close(linger_ms=linger_ms)
        self._senders.clear()
