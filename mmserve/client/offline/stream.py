"""An answer that is read piece by piece, with and without an event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from mmserve.client.completions import EventReader, Finished, Reasoning
from mmserve.client.loop_thread import LoopThread
from mmserve.client.offline.answer import Answer
from mmserve.client.posts import PostClient

CHAT_PATH = "/v1/chat/completions"
STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


class AsyncStream:
    """The pieces of an answer's text. Leaving the loop early and ``aclose`` end the request. Iterating raises
    ServerError. ``answer``: what there is of it; complete once its ``finish_reason`` is not empty."""

    def __init__(self, client: PostClient, make_body: Callable[[], Awaitable[bytes]]) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._finished = Finished("")
        self._seconds = 0.0
        self._pieces = self._read(client, make_body)

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        await self._pieces.aclose()

    @property
    def answer(self) -> Answer:
        return Answer(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            finish_reason=self._finished.reason,
            usage=self._finished.usage,
            seconds=self._seconds,
        )

    async def _read(self, client: PostClient, make_body: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[str, None]:
        body = await make_body()
        started_s = time.monotonic()
        reader = EventReader()
        async with client.lines(CHAT_PATH, body) as lines:
            async for line in lines:
                for event in reader.read(line):
                    if isinstance(event, Reasoning):
                        self._reasoning.append(event.text)
                        continue
                    self._text.append(event.text)
                    yield event.text
                self._seconds = time.monotonic() - started_s
                if reader.is_done:
                    break
        self._finished = reader.finished()


class Stream:
    """As AsyncStream, for code without an event loop."""

    def __init__(self, thread: LoopThread, stream: AsyncStream) -> None:
        self._thread = thread
        self._stream = stream

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        piece = self._thread.run(_next(self._stream))
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        self._thread.run(self._stream.aclose())

    @property
    def answer(self) -> Answer:
        return self._stream.answer


async def _next(stream: AsyncStream) -> str | None:
    return await anext(stream, None)
