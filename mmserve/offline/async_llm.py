"""AsyncLLM: a model in a server of this program's own, for code with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, overload

from mmserve.offline.answer import Answer
from mmserve.offline.chats import Chats
from mmserve.offline.conversation import Conversation, Message, Pictures
from mmserve.offline.server import OfflineServer, OnLine
from mmserve.offline.stream import AsyncStream
from mmserve.runtime.uncancelled import to_completion


class AsyncLLM:
    """``model``: packaged name, checkpoint directory, or hub id. ``options``: those of ``mmserve serve``, named with
    underscores. ``on_log`` gets each line that the server logs, in another thread.

    ``async with`` starts the server and stops it; or ``await start()`` and ``await close()``. For one event loop.
    """

    def __init__(self, model: str = "llava", *, on_log: OnLine = lambda line: None, **options: Any) -> None:
        self._server = OfflineServer(model, options, on_log)
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

    @overload
    async def chat(
        self,
        messages: str | Sequence[Message],
        *,
        images: Pictures = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> Answer: ...
    @overload
    async def chat(
        self,
        messages: Sequence[str] | Sequence[Sequence[Message]],
        *,
        images: Sequence[Pictures] | None = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> list[Answer]: ...
    async def chat(
        self,
        messages: Any,
        *,
        images: Any = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> Answer | list[Answer]:
        """Answer a conversation, or each of a list of them, at once, in their order.

        ``images``: pictures for the last message of the user, or those of each conversation. ``schema``: JSON schema of
        the answer. ``fields``: of chat completions, as temperature, max_tokens, seed. ``progress``: show a bar for a
        list. Raises ServerError if the server refuses the one conversation, PictureError for a bad picture of it; in a
        list, the ``error`` of the answer says why.
        """
        return await self._usable().chat(messages, images, schema, progress, fields)

    def stream(
        self,
        messages: Conversation,
        *,
        images: Pictures = None,
        schema: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> AsyncStream:
        """Answer one conversation piece by piece. Arguments as those of ``chat``; n must be 1."""
        return self._usable().stream(messages, images, schema, fields)

    def _usable(self) -> Chats:
        self._server.check_usable()
        if self._chats is None:
            raise RuntimeError("this AsyncLLM is not started: use 'async with', or await start()")
        return self._chats
