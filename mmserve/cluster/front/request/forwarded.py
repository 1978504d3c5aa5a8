"""One request on its way to a replica, and the memory that it keeps until its answer has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from mmserve.cluster.front.request.headers import Headers
from mmserve.cluster.scale.policy import Want
from mmserve.httpserver.call import new_request_id
from mmserve.runtime.byte_budget import ByteBudget
from mmserve.runtime.errors import MmserveError


class Kept:
    """Bytes of ``budget`` for a request: its body, and what it needs to go on elsewhere. Given back at the end of the
    context."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._nbytes = 0

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.grow_to(0)

    def grow_to(self, nbytes: int) -> None:
        """Keep so many bytes in all, even beyond the limit: an answer under way is not given up for memory, new
        requests are refused."""
        if nbytes > self._nbytes:
            self._budget.take(nbytes - self._nbytes)
        else:
            self._budget.give(self._nbytes - nbytes)
        self._nbytes = nbytes


@dataclass
class ForwardedRequest:
    """One request as the client sent it. ``repeats``: its answer is made from its body alone and may be made again;
    ``generates``: with the tokens so far, in the middle too.

    ``event_of``: an error as an event of the protocol's stream, after so many others, and its end.
    """

    method: str
    target: bytes
    headers: Headers
    body: memoryview
    want: Want
    generates: bool
    event_of: Callable[[MmserveError, int], bytes]
    kept: Kept
    repeats: bool
    names_stored: bool = False
    """It names a response, file or batch that one of the replicas may have."""
    request_id: str = field(default_factory=new_request_id)
    """What the ids of the answer are made from, by which responses are stored: never a client's own."""
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def may_act(self) -> bool:
        """True if a replica must not get it twice."""
        return not self.repeats and self.method not in ("GET", "HEAD")
