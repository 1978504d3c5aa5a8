"""Sends replies to the HTTP workers, each to the worker that serves the client."""

from __future__ import annotations

import logging

from mmserve.ipc.channel import Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.reply import HttpInbound, TokenReply

_LINGER_MS = 200

logger = logging.getLogger(__name__)


class OutputSender:
    """Channels to ``num_workers`` HTTP workers."""

    def __init__(self, endpoints: Endpoints, num_workers: int) -> None:
        self._workers: list[Sender[HttpInbound]] = [
            Sender(endpoints.http(worker), HttpInbound) for worker in range(num_workers)
        ]

    def send_all(self, replies: list[tuple[int, TokenReply]]) -> None:
        """Sends each (worker, reply). A reply to a worker that does not exist is logged and dropped."""
        for worker, reply in replies:
            if 0 <= worker < len(self._workers):
                self._workers[worker].send(reply)
            else:
                logger.error("dropped a reply of request %s to unknown http worker %d", reply.id, worker)

    def close(self) -> None:
        """Closes the channels; replies that were sent last still go out, for at most 200 ms."""
        for worker in self._workers:
            worker.close(linger_ms=_LINGER_MS)
