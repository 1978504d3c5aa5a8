"""Sends replies to the HTTP workers, each to the worker that serves the client."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.http_links import HttpLinks
from mmserve.messages.reply import SequenceStages, TokenReply
from mmserve.messages.request import EngineInbound, WorkerDied

_LINGER_MS = 200

logger = logging.getLogger(__name__)


class OutputSender:
    """Links to at most ``num_workers`` HTTP workers."""

    def __init__(self, endpoints: Endpoints, num_workers: int) -> None:
        self._num_workers = num_workers
        self._links = HttpLinks(endpoints)

    def send_all(self, replies: Iterable[tuple[int, TokenReply | SequenceStages]]) -> None:
        """Sends each (worker, reply). A reply to a worker that does not exist is logged and dropped."""
        for worker, reply in replies:
            if 0 <= worker < self._num_workers:
                self._links.send(worker, reply)
            else:
                about = f"of request {reply.id}" if isinstance(reply, TokenReply) else "about stages"
                logger.error("dropped a reply %s to unknown http worker %d", about, worker)

    def drop_dead(self, messages: Iterable[EngineInbound]) -> None:
        """Close the links to the workers of which the messages say that they have died."""
        for message in messages:
            if isinstance(message, WorkerDied):
                self._links.drop(message.worker)

    def close(self) -> None:
        """Closes the links; replies that were sent last still go out, for at most 200 ms."""
        self._links.close(linger_ms=_LINGER_MS)
