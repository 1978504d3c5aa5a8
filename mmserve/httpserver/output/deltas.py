"""One request's output, queued between the request task that produces it and the response that reads it.

The producer never blocks, so a slow client keeps no lease and no sequence. Deltas that are not read are merged, so that
a slow client costs little more than the text it has not read. The context length bounds that text.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from mmserve.httpserver.output.answer_delta import EVENT_WORK, AnswerDelta, Unread, nbytes_of, parts_of
from mmserve.httpserver.output.echoed_prompt import EchoedPrompt
from mmserve.httpserver.output.render_turns import RenderTurns
from mmserve.messages.relay import Sampled
from mmserve.messages.reply import FinishReason
from mmserve.runtime.errors import MmserveError
from mmserve.runtime.failures import without_references


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    image_tokens: int = 0
    reasoning_tokens: int = 0
    """Of ``completion_tokens``."""


_PROMPT_ID_NBYTES = 60
"""Memory of a token id in an array, in a list, and of its JSON."""


class DeltaStream:
    """Iterating yields AnswerDeltas until every choice has finished, or raises the request's MmserveError.

    ``n``: choices of each prompt; ``num_prompts``: prompts of the request.

    One reader. It waits in ``turns`` before it reads a backlog. ``reserve(nbytes)`` is called whenever the memory of
    what is unread or kept changes, and raises MmserveError if there is not enough.
    """

    def __init__(
        self, n: int, turns: RenderTurns, reserve: Callable[[int], None] = lambda nbytes: None, num_prompts: int = 1
    ) -> None:
        self._n = n
        self._turns = turns
        self._reserve = reserve
        self._held_nbytes = 0
        """Memory of unread deltas, and of what the reader keeps."""
        self._queue: deque[Unread | MmserveError] = deque()
        self._last: dict[int, Unread] = {}
        """The youngest queued deltas of each choice that has any."""
        self._reader: asyncio.Future[None] | None = None
        """Set while the reader waits for the next delta."""
        self._closed = False
        self._num_unread = n * num_prompts
        self._num_unfinished = n * num_prompts
        self.failure: MmserveError | None = None
        """The error that has ended the output."""
        self.finish_reasons: list[FinishReason] = []
        """Of the choices that have finished, in the order in which they did."""
        self._sampled: list[Sampled] = []
        """Of the deltas that were read since ``take_sampled``."""
        self._opened = asyncio.Event()
        """Set once the prompts are built, or cannot be any more."""
        self._prompt_tokens = 0
        self._image_tokens = 0
        self.echoed: tuple[EchoedPrompt, ...] = ()
        """The prompts, if the choices begin with them. Set before the first delta."""
        self.prompt_ids: tuple[array[int], ...] = ()
        """Of each prompt, if the call asked for them, with virtual ids for images. Set before the first delta."""
        self._cached_tokens: dict[int, int] = {}
        """By choice index."""
        self._completion_tokens = 0
        self._reasoning_tokens = 0

    def open(self, prompt_tokens: int, image_tokens: int, echoed: tuple[EchoedPrompt, ...] = ()) -> None:
        """Set the length of all prompts in tokens. Call before the first delta. Raises what ``reserve`` raises."""
        self._prompt_tokens, self._image_tokens, self.echoed = prompt_tokens, image_tokens, echoed
        if echoed:
            self.hold(sum(prompt.nbytes for prompt in echoed))
        self._opened.set()

    def show_prompts(self, prompt_ids: tuple[array[int], ...]) -> None:
        """Let the reader see the tokens of the prompts. Call before the first delta. Raises what ``reserve`` raises."""
        self.hold(_PROMPT_ID_NBYTES * sum(map(len, prompt_ids)))
        self.prompt_ids = prompt_ids

    async def prompt_tokens(self) -> int:
        """The length of all prompts, once they are built. Raises the request's error if it failed before."""
        await self._opened.wait()
        if self.failure is not None and not self._prompt_tokens:
            raise without_references(self.failure)
        return self._prompt_tokens

    def push(self, delta: AnswerDelta) -> None:
        """Add a delta. Exactly one of each choice, the last, has ``finish`` set. Ignored after ``fail`` and ``close``.

        Raises what ``reserve`` raises.
        """
        for part in parts_of(delta):
            self._push(part)

    def _push(self, delta: AnswerDelta) -> None:
        if self.failure is not None or self._closed:
            return
        self.hold(nbytes_of(delta))
        if delta.finish is not None:
            self._num_unfinished -= 1
            self.finish_reasons.append(delta.finish)
        last = self._last.get(delta.index)
        if last is None or not last.add(delta):
            self._last[delta.index] = merged = Unread(delta)
            self._put(merged)

    def hold(self, nbytes: int) -> None:
        """Reserve ``nbytes`` more, until ``close``; negative: less. For a reader that keeps what it has read."""
        self._reserve(self._held_nbytes + nbytes)
        self._held_nbytes += nbytes

    def close(self) -> None:
        """Nobody reads any more: drop what is unread."""
        self._closed = True
        self._queue.clear()
        self._last.clear()
        self._held_nbytes = 0
        self._reserve(0)

    def fail(self, error: MmserveError) -> None:
        """End the output with an error. Ignored if the output is complete."""
        if self.complete:
            return
        self._num_unfinished, self.failure = 0, error
        self._opened.set()
        self._put(without_references(error))

    def take_sampled(self) -> list[Sampled]:
        """The tokens of the deltas that were read since the last call, of a call that a front relays. Without those
        that the front has sent."""
        taken, self._sampled = self._sampled, []
        return taken

    @property
    def complete(self) -> bool:
        """True once every choice has finished or failed, even if not all deltas are read."""
        return self._num_unfinished == 0

    @property
    def usage(self) -> Usage:
        """Tokens of the deltas read so far. Each prompt counts once. Its cached tokens are the smallest number of any
        of its choices: the others hit the blocks that the first choice has computed."""
        cached: dict[int, int] = {}
        for index, num_tokens in self._cached_tokens.items():
            cached[index // self._n] = min(cached.get(index // self._n, num_tokens), num_tokens)
        return Usage(
            self._prompt_tokens,
            self._completion_tokens,
            sum(cached.values()),
            self._image_tokens,
            self._reasoning_tokens,
        )

    def __aiter__(self) -> AsyncIterator[AnswerDelta]:
        return self

    async def __anext__(self) -> AnswerDelta:
        if not self._num_unread:
            raise StopAsyncIteration
        if not self._queue:
            await self._arrival()
        await self._turns.wait(self._next_work)
        delta = self._pop()
        self._completion_tokens += delta.num_tokens
        self._reasoning_tokens += delta.num_reasoning_tokens
        self._cached_tokens[delta.index] = max(self._cached_tokens.get(delta.index, 0), delta.cached_tokens)
        self._num_unread -= delta.finish is not None
        if delta.sampled is not None and not delta.replayed:
            self._sampled.append(delta.sampled)
        return delta

    def _put(self, entry: Unread | MmserveError) -> None:
        self._queue.append(entry)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _next_work(self) -> int:
        return EVENT_WORK if isinstance(first := self._queue[0], MmserveError) else first.work

    async def _arrival(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _pop(self) -> AnswerDelta:
        """The oldest deltas, as one. Raises the request's error."""
        first = self._queue.popleft()
        if isinstance(first, MmserveError):
            try:
                raise first
            finally:
                del first  # the exception refers to this frame, so the frame must not refer to it
        if self._last[first.index] is first:
            del self._last[first.index]
        self._turns.spend(first.work)
        self.hold(-first.nbytes)
        return first.delta()
