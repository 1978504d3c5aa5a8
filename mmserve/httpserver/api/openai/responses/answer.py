"""OpenAI Responses: sends AnswerDeltas as numbered events, or as one response that is made of the same events."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Send

from mmserve.httpserver.api.openai.errors import error_object
from mmserve.httpserver.api.openai.logprobs import logprobs_for
from mmserve.httpserver.api.openai.responses.objects import (
    IncompleteDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
)
from mmserve.httpserver.api.openai.responses.writer import Event, OutputWriter
from mmserve.httpserver.api.response import PART_NBYTES, SSE_DONE, send_events, send_json
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.parsing.pieces import characters
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.response_store.database import StoredItem
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.messages.reply import FinishReason
from mmserve.runtime.errors import MmserveError

_KEPT_COPIES = 5
"""Of an answer's text: its pieces, the items, their JSON, and the response and its items as they are stored."""


class StoredResponse:
    """The stored form of one response, whose input is stored already. ``end`` must be called."""

    def __init__(self, responses: ResponseStore, id: str) -> None:
        self._responses = responses
        self._id = id
        self._finished = False

    async def finish(self, response: ResponseObject) -> bool:
        """False if the response cannot be stored."""
        items = [StoredItem(item.id, msgspec.json.encode(item)) for item in response.output]
        self._finished = await self._responses.finish(self._id, msgspec.json.encode(response), items)
        return self._finished

    async def end(self) -> None:
        """Drop the input of a response that is not finished."""
        if not self._finished:
            await self._responses.forget(self._id)


@dataclass(frozen=True)
class ResponsesAnswer:
    """Sends the answer, streamed or at once. ``response``: as it is before there is any output.

    ``stored``: None if the response is not to be stored.
    """

    response: ResponseObject
    stored: StoredResponse | None = None

    async def __call__(self, task: RequestTask, send: Send) -> None:
        """Raises MmserveError only if nothing has been sent."""
        try:
            if task.call.stream:
                await send_events(send, self._events(task))
            else:
                await send_json(send, msgspec.json.encode(await self._whole(task)))
        finally:
            if self.stored is not None:
                await self.stored.end()

    async def _whole(self, task: RequestTask) -> ResponseObject:
        fold = _Fold(self.response, task)
        async for delta in task.deltas:
            for _ in fold.add(delta):
                pass
        for _ in fold.end():
            pass
        await self._store(fold.response)
        return fold.response

    async def _events(self, task: RequestTask) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error after the first delta becomes an event: the status is sent by then."""
        fold, numbered, started = _Fold(self.response, task), _Numbering(), False
        try:
            async for delta in task.deltas:
                for event in () if started else fold.begin():
                    yield numbered.sse(event)
                started = True
                for event in fold.add(delta):
                    yield numbered.sse(event)
            last = [*fold.end()]
            await self._store(fold.response)
        except MmserveError as error:
            if not started:
                raise
            last = [*fold.fail(error)]
        for event in last:
            for part in _parts(numbered.sse(event)):
                yield part
        yield SSE_DONE

    async def _store(self, response: ResponseObject) -> None:
        """The client is told whether it was stored."""
        response.store = self.stored is not None and await self.stored.finish(response)


class _Fold:
    """One response under way: ``response`` after each event."""

    def __init__(self, response: ResponseObject, task: RequestTask) -> None:
        self.response = msgspec.structs.replace(response)
        self._task = task
        self._writer = OutputWriter(task.call.request_id)
        self._finish: FinishReason | None = None

    def begin(self) -> Iterator[Event]:
        yield self._lifecycle("created")
        yield self._lifecycle("in_progress")

    def add(self, delta: AnswerDelta) -> Iterator[Event]:
        """Counts what is kept of the delta as memory of the answer."""
        logprobs = logprobs_for(self._task.call, delta.logprobs)
        encoded = [] if logprobs is None else logprobs.content
        kept_nbytes = sum(sys.getsizeof(characters(piece)) for piece in delta.pieces)
        kept_nbytes += sum(len(memoryview(one)) + _RAW_NBYTES for one in encoded)
        self._task.deltas.hold(_KEPT_COPIES * kept_nbytes)
        self._finish = delta.finish or self._finish
        yield from self._writer.events(delta.pieces, encoded)

    def end(self) -> Iterator[Event]:
        cut = self._finish == "length"
        yield from self._writer.end(complete=not cut)
        if cut:
            self.response.incomplete_details = IncompleteDetails("max_output_tokens")
        yield self._final("incomplete" if cut else "completed")

    def fail(self, error: MmserveError) -> Iterator[Event]:
        """Both forms of the error event: clients read the one or the other."""
        yield from self._writer.end(complete=False)
        fields = msgspec.structs.asdict(error_object(error))
        flat = {"code": fields["code"], "message": error.message, "param": error.param}
        yield Event("error", flat | {"error": fields})
        self.response.error = ResponseError(_failure_code(error), error.message)
        yield self._final("failed")

    def _final(self, status: str) -> Event:
        self.response.status, self.response.output = status, self._writer.items
        if status == "completed":
            self.response.completed_at = int(time.time())
        self.response.usage = ResponseUsage.of(self._task.deltas.usage)
        return self._lifecycle(status)

    def _lifecycle(self, name: str) -> Event:
        return Event(f"response.{name}", {"response": self.response})


_RAW_NBYTES = 120
"""Of the object that holds one token's log-probabilities as JSON."""


class _Numbering:
    """Gives events their numbers, from 0 without gaps."""

    def __init__(self) -> None:
        self._next = 0

    def sse(self, event: Event) -> bytes:
        fields: dict[str, Any] = {"type": event.type, "sequence_number": self._next} | event.fields
        self._next += 1
        return b"event: %s\ndata: %s\n\n" % (event.type.encode(), msgspec.json.encode(fields))


def _parts(data: bytes) -> Iterator[bytes]:
    """The last events have the whole answer, so they are sent in parts: each waits until the client has read."""
    for at in range(0, len(data), PART_NBYTES):
        yield data[at : at + PART_NBYTES]


def _failure_code(error: MmserveError) -> str:
    """One of those that OpenAI's schema lists."""
    if error.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= 500 else "invalid_prompt"
