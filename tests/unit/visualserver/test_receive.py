"""A message that the visual server cannot handle: its client is answered, and the next message is handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mmserve.messages.request import AbortRequest, EncodeRequest, VisualInbound, WorkerDied
from mmserve.visualserver.run import _receive
from tests.unit.router.builders import abort


def _request(name: str, attempt: int = 0) -> EncodeRequest:
    return EncodeRequest(id=name, reply_to=0, spans=(), arrival_s=0.0, attempt=attempt)


@pytest.mark.parametrize(
    ("failing", "answers"),
    [
        (
            _request("r", attempt=3),
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
        (abort("aborted", attempt=2), []),
        (WorkerDied(worker=0, died_s=1.0), []),
    ],
)
def test_a_message_that_fails_is_answered(failing: VisualInbound, answers: list[AbortRequest]) -> None:
    received: list[VisualInbound] = []
    emitted: list[Any] = []
    after = _request("after")

    class Pipeline:
        def receive(self, message: VisualInbound) -> None:
            if message is failing:
                raise RuntimeError("a bug")
            received.append(message)

    async def inbox() -> AsyncIterator[VisualInbound]:
        yield failing
        yield after

    messages: Any = inbox()
    pipeline: Any = Pipeline()
    asyncio.run(_receive(messages, pipeline, emitted.append))
    assert (received, emitted) == ([after], answers)
