"""The socket of a server's reports: XPUB over TCP, for fronts with the same cluster key."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import zmq

from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.ipc.links.curve import publishing
from mmserve.ipc.links.snapshots import is_asked

_UNREAD_REPORTS = 100
"""For each front; then it misses some, which it notices."""


class ReportPublisher:
    """Binds at once. ``publish`` never waits."""

    def __init__(self, endpoint: str, key: ClusterKey) -> None:
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(publishing(endpoint, key, "--reports-endpoint", _UNREAD_REPORTS))

    def __enter__(self) -> ReportPublisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def endpoint(self) -> str:
        """Where it is bound."""
        return str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def is_asked(self) -> bool:
        """True if a front has come, or has missed something, since the last call."""
        return is_asked(self._socket)

    def publish(self, data: bytes) -> None:
        """To all fronts that are connected."""
        self._socket.send(data)
