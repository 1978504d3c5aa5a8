"""A response in the background: its task is read into the store, whoever looks. Its client, if it streams, is one of
those that follow."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec
from starlette.responses import Response

from mmserve.httpserver.api.openai.responses.events.answer import TaskFold, response_error
from mmserve.httpserver.api.openai.responses.events.fold import failed, stored_output
from mmserve.httpserver.api.openai.responses.events.follow import FollowedEvents, Follower, seen
from mmserve.httpserver.api.openai.responses.events.objects import ResponseObject
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.runtime.errors import MmserveError, Unavailable

_NO_ROOM = Unavailable("the response is larger than what may be stored (--responses-store-mb)")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackgroundAnswer:
    """Starts the response, whose queued form is stored already. ``follower``: of a client that streams, else None."""

    response: ResponseObject
    responses: ResponseStore
    follower: Follower | None

    def respond(self, task: RequestTask) -> Response:
        """What the client gets at once."""
        run = _Run(self.responses, self.response, task)
        self.responses.runs.start(self.response.id, run.run(), task.abort)
        if self.follower is not None:
            return FollowedEvents(self.follower)
        return Response(msgspec.json.encode(self.response), media_type="application/json")


class _Run:
    """Reads the answer of one task into the store."""

    def __init__(self, responses: ResponseStore, response: ResponseObject, task: RequestTask) -> None:
        self._responses = responses
        self._id = response.id
        self._task = task
        self._fold = TaskFold(response, task)

    async def run(self) -> None:
        """Ends once the response has, however it does."""
        try:
            await self._read()
        except MmserveError as error:
            self._fold.fail(error)
        except Exception:  # the request boundary
            logger.exception("the response %s failed", self._id)
            self._fold.fail(MmserveError("internal error"))
        finally:
            self._task.abort()
            self._task.response_ended()
        output = stored_output(self._fold.response)
        if not await self._responses.end(self._id, lambda body, record: output):
            # It is too large, or it was cancelled or deleted, and then this changes nothing.
            await self._responses.end(self._id, failed(response_error(_NO_ROOM)))

    async def _read(self) -> None:
        """Raises MmserveError."""
        await self._task.deltas.prompt_tokens()
        self._fold.start()
        if not await self._responses.start(self._id, msgspec.json.encode(self._fold.response)):
            raise _NO_ROOM
        num_lines = 0
        self._responses.runs.stored(self._id, seen(num_lines))
        async for delta in self._task.deltas:
            for _ in self._fold.add(delta):
                pass
            if line := self._fold.line():
                if not await self._responses.append(self._id, num_lines, line):
                    raise _NO_ROOM
                num_lines += 1
                self._responses.runs.stored(self._id, seen(num_lines))
        self._fold.end()
