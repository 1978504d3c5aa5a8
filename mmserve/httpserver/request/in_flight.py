"""The requests in flight of one HTTP worker, as the dashboard shows them. Made when somebody asks for them: nothing is
kept for it while a request is served. The router is asked how far their sequences are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.httpserver.request.task import RequestTask, RequestTasks
from mmserve.messages.reply import SequenceStage, SequenceStages
from mmserve.messages.request import AskStages, choice_id
from mmserve.messages.server_state import MAX_REQUESTS, RequestStage, RequestState

TIMEOUT_S = 0.5
"""For the router, which answers between two steps."""


class Link(Protocol):
    """Implemented by engine.links.EngineLinks."""

    def ask(self, message: AskStages) -> None: ...


class RequestsInFlight:
    """One per worker; used from its event loop only. ``worker``: its index."""

    def __init__(
        self, worker: int, tasks: RequestTasks, dispatcher: Dispatcher, link: Link, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._worker = worker
        self._tasks = tasks
        self._dispatcher = dispatcher
        self._link = link
        self._timeout_s = timeout_s
        self._answer: asyncio.Future[SequenceStages] | None = None
        """Set while an answer of the router is waited for."""

    async def oldest(self) -> list[RequestState]:
        """At most MAX_REQUESTS, oldest first. Waits for the router at most ``timeout_s``."""
        sequences = {task: self._sequence(task) for task in self._tasks.oldest(MAX_REQUESTS)}
        stages = await self._stages([id for id in sequences.values() if id is not None])
        now_s = time.monotonic()
        return [_row(task, now_s, id, stages) for task, id in sequences.items() if not task.deltas.complete]

    def deliver(self, answer: SequenceStages) -> None:
        """The router's answer. One that comes too late is as good for the question after it."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _sequence(self, task: RequestTask) -> str | None:
        """The first sequence of the request that the engine has not ended; None: it has none now."""
        ids = (choice_id(task.call.request_id, index) for index in range(task.call.num_choices))
        return next((id for id in ids if self._dispatcher.is_live(id)), None)

    async def _stages(self, ids: Sequence[str]) -> Mapping[str, SequenceStage]:
        if not ids:
            return {}
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
        answer = self._answer
        self._link.ask(AskStages(reply_to=self._worker, ids=tuple(ids)))
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await asyncio.shield(answer)).stages
        except TimeoutError:
            return {}
        finally:
            self._answer = None


def _row(task: RequestTask, now_s: float, sequence: str | None, stages: Mapping[str, SequenceStage]) -> RequestState:
    usage = task.deltas.usage
    return RequestState(
        id=task.call.request_id,
        age_s=round(now_s - task.call.arrival_s, 3),
        state=_state(task) if sequence is None else stages.get(sequence),
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        images=task.num_images,
    )


def _state(task: RequestTask) -> RequestStage:
    """Of a request that the engine does not have."""
    return "waiting" if task.images_are_read else "reading"
