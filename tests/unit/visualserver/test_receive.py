"""A message that the visual server cannot handle: its client is answered, and the next message is handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mmserve.messages.request import AbortRequest, EngineInbound, WorkerDied
from mmserve.visualserver.run import _receive
from tests.unit.router.builders import abort, request

ABORT = abort("aborted", attempt=2)


@pytest.mark.parametrize(
    ("failing", "answers"),
    [
        (
            request("r", [1], attempt=3),
            [
                AbortRequest(
                    id="r",
                    reply_to=0,
                    reason="internal_error",
                    message="the visual server could not take this request",
                    attempt=3,
                )
            ],
        ),
        (ABORT, [ABORT]),
        (WorkerDied(worker=0, died_s=1.0), []),
    ],
)
def test_a_message_that_fails_is_answered(failing: EngineInbound, answers: list[EngineInbound]) -> None:
    received: list[EngineInbound] = []
    emitted: list[EngineInbound] = []
    after = request("after", [1])

    class Pipeline:
        def receive(self, message: EngineInbound) -> None:
            if message is failing:
                raise RuntimeError("a bug")
            received.append(message)

    async def inbox() -> AsyncIterator[EngineInbound]:
        yield failing
        yield after

    messages: Any = inbox()
    pipeline: Any = Pipeline()
    asyncio.run(_receive(messages, pipeline, emitted.append))
    assert (received, emitted) == ([after], answers)
