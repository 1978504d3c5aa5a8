"""What the cache server tells of the embeddings in the arena, read when a report is due: a SUB on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

import msgspec
import zmq

from mmserve.cluster.scale.reports import HOLDINGS, Holdings
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.snapshots import ask
from mmserve.runtime.errors import StartupError
from mmserve.runtime.shortage import OF_A_LINK, has_descriptors

_UNREAD = 1000
"""Reports. Those beyond are lost, which is noticed."""
logger = logging.getLogger(__name__)


class ArenaLink:
    """Connects at once, and again when the cache server has started again, which then tells all that it has."""

    def __init__(self, endpoints: Endpoints) -> None:
        if not has_descriptors(OF_A_LINK):
            raise StartupError("too few file descriptors are left for reports: raise `ulimit -n`")
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.set_hwm(_UNREAD)
        self._socket.subscribe(b"")
        self._socket.connect(endpoints.cache_holdings)

    def __enter__(self) -> ArenaLink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close(linger=0)

    def take(self, stored: Callable[[Holdings], bool]) -> None:
        """Hand all that has come to ``stored``, which returns False if something is missing before it."""
        while True:
            try:
                report = HOLDINGS.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except msgspec.DecodeError:
                logger.exception("a report of the cache server was not understood and is ignored")
                continue
            if not stored(report):
                ask(self._socket)
