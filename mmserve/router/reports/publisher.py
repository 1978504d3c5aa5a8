"""The socket of a server's reports: PUB over TCP, for fronts that share the secret."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import zmq

from mmserve.ipc.front_keys import FrontKeys, Fronts
from mmserve.runtime.errors import StartupError

_UNREAD_REPORTS = 100
"""For each front; then it misses some, which it notices."""


class ReportPublisher:
    """Binds at once. ``publish`` never waits."""

    def __init__(self, endpoint: str, secret: bytes) -> None:
        keys = FrontKeys(secret)
        with ExitStack() as stack:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            stack.callback(context.destroy, linger=0)
            stack.enter_context(Fronts(context, keys))
            self._socket = context.socket(zmq.PUB)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.set_hwm(_UNREAD_REPORTS)
            keys.bind_side(self._socket)
            try:
                self._socket.bind(endpoint)
            except zmq.ZMQError as error:
                raise StartupError(f"reports cannot be published at {endpoint}: {error}") from None
            self._stack = stack.pop_all()

    def __enter__(self) -> ReportPublisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def endpoint(self) -> str:
        """Where it is bound."""
        return str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def publish(self, data: bytes) -> None:
        """To all fronts that are connected."""
        self._socket.send(data)
