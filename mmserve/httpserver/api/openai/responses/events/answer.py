"""OpenAI Responses: sends AnswerDeltas as numbered events, or as one response that is made of the same events."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

import msgspec
from starlette.types import Send

from mmserve.httpserver.api.openai.errors import error_object
from mmserve.httpserver.api.openai.logprobs import logprobs_for
from mmserve.httpserver.api.openai.responses.events.fold import Fold, record_line, stored_output
from mmserve.httpserver.api.openai.responses.events.numbering import Numbering, parts_of
from mmserve.httpserver.api.openai.responses.events.objects import ResponseError, ResponseObject, ResponseUsage
from mmserve.httpserver.api.openai.responses.events.writer import Event
from mmserve.httpserver.api.response import SSE_DONE, send_events, send_json
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.parsing.pieces import Piece, characters
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.messages.reply import FinishReason
from mmserve.runtime.errors import MmserveError

_KEPT_COPIES = 6
"""Of an answer's text: its pieces, the items, their JSON, the response and its items as they are stored, the record."""
_RAW_NBYTES = 120
"""Of the object that holds one token's log-probabilities as JSON."""
_LINE_NBYTES = 80
"""Of a line of a record, besides its text."""


class StoredResponse:
    """The stored form of one response, whose input is stored already. ``attempt``: that has stored it. ``end`` must be
    called."""

    def __init__(self, responses: ResponseStore, id: str, attempt: str) -> None:
        self._responses = responses
        self._id, self._attempt = id, attempt
        self._finished = False

    async def finish(self, response: ResponseObject, record: bytes | None) -> bool:
        """False if the response cannot be stored."""
        self._finished = await self._responses.finish(self._id, self._attempt, stored_output(response, record))
        return self._finished

    async def end(self) -> None:
        """Drop the input of a response that is not finished."""
        if not self._finished:
            await self._responses.forget(self._id, self._attempt)


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
                await send_events(send, self._events(task), task)
            else:
                await send_json(send, msgspec.json.encode(await self._whole(task)))
        finally:
            if self.stored is not None:
                await self.stored.end()

    async def _whole(self, task: RequestTask) -> ResponseObject:
        fold = TaskFold(self.response, task)
        async for delta in task.deltas:
            for _ in fold.add(delta):
                pass
        fold.end()
        await self._store(fold.response)
        return fold.response

    async def _events(self, task: RequestTask) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error after the first delta becomes an event: the status is sent by then."""
        fold, numbered, started = TaskFold(self.response, task), Numbering(), False
        record: list[bytes] = []
        try:
            async for delta in task.deltas:
                for event in () if started else fold.begin():
                    yield numbered.sse(event)
                started = True
                for event in fold.add(delta):
                    yield numbered.sse(event)
                if self.stored is not None:
                    record.append(fold.line())
            last = fold.end()
            await self._store(fold.response, b"".join(record))
        except MmserveError as error:
            if not started:
                raise
            last = fold.fail(error)
        for event in last:
            for part in parts_of(numbered.sse(event)):
                yield part
        yield SSE_DONE

    async def _store(self, response: ResponseObject, record: bytes | None = None) -> None:
        """The client is told whether it was stored."""
        response.store = self.stored is not None and await self.stored.finish(response, record)


class TaskFold:
    """The response to a request under way. Counts what is kept of its deltas as memory of the answer."""

    def __init__(self, response: ResponseObject, task: RequestTask) -> None:
        self._task = task
        self._fold = Fold(response)
        self._finish: FinishReason | None = None
        self._last: tuple[tuple[Piece, ...], list[msgspec.Raw]] = ((), [])

    @property
    def response(self) -> ResponseObject:
        return self._fold.response

    def begin(self) -> Iterator[Event]:
        return self._fold.begin()

    def start(self) -> None:
        """The response was queued and is now in progress."""
        for _ in self._fold.start():
            pass

    def add(self, delta: AnswerDelta) -> Iterator[Event]:
        logprobs = logprobs_for(self._task.call, delta.logprobs)
        encoded = [] if logprobs is None else logprobs.content
        kept_nbytes = sum(sys.getsizeof(characters(piece)) for piece in delta.pieces)
        kept_nbytes += sum(len(memoryview(one)) + _RAW_NBYTES for one in encoded)
        self._task.deltas.hold(_KEPT_COPIES * kept_nbytes + _LINE_NBYTES)
        self._finish = delta.finish or self._finish
        self._last = delta.pieces, encoded
        return self._fold.add(delta.pieces, encoded)

    def line(self) -> bytes:
        """The last delta as a line of the record; empty if it says nothing."""
        return record_line(*self._last) if any(self._last) else b""

    def end(self) -> list[Event]:
        return [*self._fold.end(cut=self._finish == "length", usage=self._usage())]

    def fail(self, error: MmserveError) -> list[Event]:
        shown = msgspec.structs.asdict(error_object(error))
        return [*self._fold.fail(response_error(error), shown, self._usage())]

    def _usage(self) -> ResponseUsage:
        return ResponseUsage.of(self._task.deltas.usage)


def response_error(error: MmserveError) -> ResponseError:
    """``error`` of a response, with one of the codes that OpenAI's schema lists."""
    if error.status == 429:
        return ResponseError("rate_limit_exceeded", error.message)
    return ResponseError("server_error" if error.status >= 500 else "invalid_prompt", error.message)
