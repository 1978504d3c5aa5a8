"""One request's output, queued between the request task that produces it and the response that reads it.

The producer never blocks, so a slow client keeps no lease and no sequence. The context length bounds the queue.
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
    """New text of choice ``index``. ``finish`` is set on the last delta of a choice."""

    index: int
    text: str
    num_tokens: int
    finish: FinishReason | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    """For tokens whose text starts in this delta, if the call asked for them."""


class DeltaStream:
    """Iterating yields TextDeltas until each of ``n`` choices has finished, or raises the request's MmserveError."""

    def __init__(self, n: int) -> None:
        self._queue: asyncio.Queue[TextDelta | MmserveError] = asyncio.Queue()
        self._num_unread = n
        self._num_unfinished = n
        self.finish_reasons: list[FinishReason] = []
        """Of the choices that have finished, in the order in which they did."""
        self._prompt_tokens = 0
        self._image_tokens = 0
        self._cached_tokens: dict[int, int] = {}
        """By choice index."""
        self._completion_tokens = 0

    def open(self, prompt_tokens: int, image_tokens: int) -> None:
        """Set the prompt's length in tokens. Call before the first delta."""
        self._prompt_tokens, self._image_tokens = prompt_tokens, image_tokens

    def push(self, delta: TextDelta) -> None:
        """Add a delta. Exactly one of each choice, the last, has ``finish`` set."""
        if delta.finish is not None:
            self._num_unfinished -= 1
            self.finish_reasons.append(delta.finish)
        self._queue.put_nowait(delta)

    def fail(self, error: MmserveError) -> None:
        """End the output with an error. Ignored if the output is complete."""
        if self.complete:
            return
        self._num_unfinished = 0
        self._queue.put_nowait(error)

    @property
    def complete(self) -> bool:
        """True once every choice has finished or failed, even if not all deltas are read."""
        return self._num_unfinished == 0

    @property
    def usage(self) -> Usage:
        """Tokens of the deltas read so far. The prompt counts once. Its cached tokens are the smallest number of any
        choice: the others hit the blocks that the first choice has computed."""
        cached = min(self._cached_tokens.values(), default=0)
        return Usage(self._prompt_tokens, self._completion_tokens, cached, self._image_tokens)

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self

    async def __anext__(self) -> TextDelta:
        if not self._num_unread:
            raise StopAsyncIteration
        delta = await self._queue.get()
        if isinstance(delta, MmserveError):
            raise delta
        self._completion_tokens += delta.num_tokens
        self._cached_tokens[delta.index] = max(self._cached_tokens.get(delta.index, 0), delta.cached_tokens)
        self._num_unread -= delta.finish is not None
        return delta
