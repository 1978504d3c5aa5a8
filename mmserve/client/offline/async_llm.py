"""AsyncLLM: a model in a server of this program's own, for code with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from mmserve.client.offline.answer import Answer
from mmserve.client.offline.asked import Asked, Question
from mmserve.client.offline.chats import Chats
from mmserve.client.offline.stream import AsyncStream
from mmserve.runtime.uncancelled import to_completion


class AsyncLLM(Asked[Coroutine[Any, Any, Answer], Coroutine[Any, Any, list[Answer]], AsyncStream]):
    """See ``Asked``; ``chat`` is awaited. ``async with`` starts the server and stops it; or ``await start()`` and
    ``await close()``. For one event loop."""

    def _made(self) -> None:
        self._chats: Chats | None = None

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the processes; they are ready when this returns. Raises StartupError."""
        self._server.check_usable()
        if self._chats is not None:
            return
        try:
            own = await to_completion(asyncio.to_thread(self._server.start))
            self._chats = await Chats.connect(own, self._server.max_in_flight)
        except BaseException:  # nobody would stop the server of an LLM that has not started
            await self.close()
            raise

    async def close(self) -> None:
        """End the requests that are under way, and stop all processes."""
        chats, self._chats = self._chats, None
        if chats is not None:
            await chats.aclose()
        await to_completion(asyncio.to_thread(self._server.stop))

    def _chat(
        self, question: Question, *, progress: bool
    ) -> Coroutine[Any, Any, Answer] | Coroutine[Any, Any, list[Answer]]:
        return self._usable().chat(question, progress=progress)

    def _stream(self, question: Question) -> AsyncStream:
        return self._usable().stream(question)

    def _usable(self) -> Chats:
        self._server.check_usable()
        if self._chats is None:
            raise RuntimeError("this AsyncLLM is not started: use 'async with', or await start()")
        return self._chats
