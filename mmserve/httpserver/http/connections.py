"""The open connections of one worker: their limits in number and time, their counts, the refusal of one too many."""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import dataclass
from typing import Literal, Protocol

from mmserve.config.config import Config
from mmserve.runtime.retry_after import Turnover, header_seconds

_DESCRIPTORS_A_CONNECTION = 3
"""The socket, and the two of ``http/disconnect.py`` while its request waits for memory."""
_OTHER_DESCRIPTORS = 256
_RETRY_AFTER_S = 1.0
"""Before any connection has ended."""
_MAX_LINGERING = 64
_LINGER_S = 1.0
"""A refused connection is read from for this long. Closing while unread data has arrived would reset it, and most
clients would report the reset instead of the answer. If ``_MAX_LINGERING`` are open already, it is closed at once."""

CloseReason = Literal["limit", "idle", "head_timeout", "head_too_large", "body_timeout", "unread"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of one worker. Times in seconds; none of them runs while the engine works on an answer."""

    max_connections: int = 4096
    idle_s: float = 75.0
    """Without a request: after the connection was made, or after an answer."""
    head_s: float = 30.0
    """From the first to the last byte of a request's head."""
    body_s: float = 60.0
    """Without enough new data of a body that a route reads; in all for the rest of a body that was refused."""
    unread_s: float = 60.0
    """Without the client reading any of an answer that waits to be sent."""

    @classmethod
    def of(cls, config: Config) -> ConnectionLimits:
        """The configured limits, with no more connections than this process may open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        possible = max(1, (soft - _OTHER_DESCRIPTORS) // _DESCRIPTORS_A_CONNECTION)
        if soft != resource.RLIM_INFINITY and possible < config.max_connections:
            logger.warning(
                "--max-connections %d is lowered to %d, as this process may open %d files: raise `ulimit -n`",
                config.max_connections,
                possible,
                soft,
            )
        else:
            possible = config.max_connections
        return cls(
            max_connections=possible,
            idle_s=config.keep_alive_timeout,
            head_s=config.head_timeout,
            body_s=config.body_timeout,
            unread_s=config.unread_timeout,
        )


class Counts(Protocol):
    """Implemented by metrics.client.MetricsClient."""

    def add(self, name: str, value: float, *labels: str) -> None: ...


class Connection(Protocol):
    """What is counted of an open connection."""

    @property
    def unsent_nbytes(self) -> int:
        """Bytes of answers that the kernel has not taken yet."""


class OpenConnections:
    """The connections of one worker. ``refusal``: the JSON body of the 503 that one too many gets."""

    def __init__(self, limits: ConnectionLimits, metrics: Counts, refusal: bytes) -> None:
        self.limits = limits
        self._metrics = metrics
        self._refusal = refusal
        self._turnover = Turnover(_RETRY_AFTER_S)
        self._open: set[Connection] = set()
        self._lingering: set[RefusedConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self.limits.max_connections

    def add(self, connection: Connection) -> None:
        self._open.add(connection)
        self._turnover.hold(len(self._open))

    def remove(self, connection: Connection) -> None:
        """Idempotent; also for one that was never added."""
        self._open.discard(connection)
        self._turnover.hold(len(self._open))

    def refuse(self, transport: asyncio.Transport) -> None:
        """Answer 503 and close, once the client has read the answer or ``_LINGER_S`` is over."""
        self.count_close("limit")
        transport.write(_response_503(self._refusal, self._turnover.seconds_until_free()))
        if len(self._lingering) >= _MAX_LINGERING:
            transport.set_protocol(asyncio.Protocol())
            transport.close()
        else:
            transport.set_protocol(RefusedConnection(transport, self._lingering))

    def count_close(self, reason: CloseReason) -> None:
        """Count a connection that a limit ends."""
        self._metrics.add("http_connections_closed", 1, reason)

    def report(self) -> None:
        """Set the gauges."""
        unsent = [nbytes for connection in self._open if (nbytes := connection.unsent_nbytes)]
        self._metrics.add("http_connections", len(self._open))
        self._metrics.add("http_connections_unread", len(unsent))
        self._metrics.add("http_unread_bytes", sum(unsent))


class RefusedConnection(asyncio.Protocol):
    """Discards what a refused client sends, for a moment. ``lingering``: all of them."""

    def __init__(self, transport: asyncio.Transport, lingering: set[RefusedConnection]) -> None:
        self._lingering = lingering
        lingering.add(self)
        transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self._lingering.discard(self)
        self._timer.cancel()


def _response_503(body: bytes, retry_after_s: float) -> bytes:
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"retry-after: {header_seconds(retry_after_s)}",
        "connection: close",
        "",
        "",
    )
    return "\r\n".join(head).encode() + body
