"""What a response sees of its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Message, Receive, Scope

from mmserve.httpserver.http.disconnect import LOST


class Connection:
    """A connection until ``lose``. Responses are called with its ``scope`` and ``receive``."""

    def __init__(self) -> None:
        self._lost = False
        self._on_lost: set[Callable[[], None]] = set()
        self.scope: Scope = {
            "type": "http",
            "extensions": {LOST: {"add": self._add, "discard": self._on_lost.discard}},
        }
        self.receive: Receive = self._receive

    def lose(self) -> None:
        """The client is gone."""
        self._lost = True
        while self._on_lost:
            self._on_lost.pop()()

    def _add(self, on_lost: Callable[[], None]) -> None:
        self._on_lost.add(on_lost)
        if self._lost:
            asyncio.get_running_loop().call_soon(self.lose)

    async def _receive(self) -> Message:
        raise AssertionError("the body was read before the response")
