"""One request's answer between the task that makes it and the connection that reads it.

Never blocks the maker, so a client that reads slowly holds no lease and no sequence; what waits here is bounded by
the context length. Counts usage. Knows no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from mmserve.httpserver.output.logprobs import TokenLogprobs
from mmserve.messages.reply import FinishReason
from mmserve.runtime.errors import MmserveError


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    image_tokens: int = 0


@dataclass(frozen=True)
class TextDelta:
    """New text of choice ``index``; ``finish`` on its last."""

    index: int
    text: str
    num_tokens: int
    finish: FinishReason | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens whose text begins here, when the call asked."""


class DeltaStream:
    """Iterating yields TextDeltas until each of ``n`` choices has finished, or raises the request's MmserveError."""

    def __init__(self, n: int) -> None:
        self._queue: asyncio.Queue[TextDelta | MmserveError] = asyncio.Queue()
        self._unread = n
        self._unmade = n
        self._prompt_tokens = 0
        self._image_tokens = 0
        self._cached_tokens: dict[int, int] = {}
        """By choice."""
        self._completion_tokens = 0

    def open(self, prompt_tokens: int, image_tokens: int) -> None:
        """Say how long the prompt is; before the first delta."""
        self._prompt_tokens, self._image_tokens = prompt_tokens, image_tokens

    def push(self, delta: TextDelta) -> None:
        """Add a delta; of each choice exactly one, the last, carries ``finish``."""
        self._unmade -= delta.finish is not None
        self._queue.put_nowait(delta)

    def fail(self, error: MmserveError) -> None:
        """End the answer with an error; ignored when it is complete."""
        if self.complete:
            return
        self._unmade = 0
        self._queue.put_nowait(error)

    @property
    def complete(self) -> bool:
        """Is everything said, read or not?"""
        return self._unmade == 0

    @property
    def usage(self) -> Usage:
        """Tokens of the deltas read so far. The prompt counts once, so it was cached as far as for its first choice:
        the others find what that one has computed."""
        cached = min(self._cached_tokens.values(), default=0)
        return Usage(self._prompt_tokens, self._completion_tokens, cached, self._image_tokens)

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self

    async def __anext__(self) -> TextDelta:
        if not self._unread:
            raise StopAsyncIteration
        delta = await self._queue.get()
        if isinstance(delta, MmserveError):
            raise delta
        self._completion_tokens += delta.num_tokens
        self._cached_tokens[delta.index] = max(self._cached_tokens.get(delta.index, 0), delta.cached_tokens)
        self._unread -= delta.finish is not None
        return delta
