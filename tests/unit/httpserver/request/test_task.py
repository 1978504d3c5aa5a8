"""The task of a request: its log lines, its error for the client, and the release of its resources."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, cast

import pytest

from mmserve.httpserver.api.openai.chat.answer import ChatAnswer
from mmserve.httpserver.call import GenerateCall, MediaRef
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.output.parsing.pieces import Text
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.request.task import RequestTask, RequestTasks
from mmserve.messages.request import choice_id
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.errors import MediaError, MmserveError, Overloaded, Unavailable
from tests.fakes.processes.samples import Samples
from tests.fakes.ranks.calls import generate_call

ROUTE = "/v1/chat/completions"


class Resources:
    num_released = 0

    def release(self) -> None:
        self.num_released += 1

    def answer_memory(self) -> Resources:
        return self

    def resize(self, nbytes: int) -> None:
        return None


def start(generate: Any, call: GenerateCall) -> tuple[RequestTask, Resources]:
    tasks, resources = RequestTasks(generate, cast(MetricsClient, Samples())), Resources()
    return tasks.start(call, cast(RequestResources, resources), ROUTE), resources


async def answer(call: GenerateCall, deltas: DeltaStream, resources: RequestResources) -> None:
    deltas.open(prompt_tokens=3, image_tokens=0)
    deltas.push(AnswerDelta(1, (Text("b"),), 1, finish="length"))
    deltas.push(AnswerDelta(0, (Text("a"),), 1, finish="stop"))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mmserve.httpserver.request.task")


def test_start_and_end_are_logged_with_the_id_of_the_body_and_of_the_choices(caplog: pytest.LogCaptureFixture) -> None:
    call = generate_call(request_id="17ab", n=2, media=(MediaRef("data:,", "messages[0]"),))

    async def run() -> bytes:
        sent: list[Any] = []

        async def collect(message: Any) -> None:
            sent.append(message)

        task, resources = start(answer, call)
        await ChatAnswer()(task, collect)
        await asyncio.sleep(0)
        assert resources.num_released == 1
        return b"".join(message.get("body", b"") for message in sent)

    body = json.loads(asyncio.run(run()))
    started, ended = lines(caplog)
    assert started == f"request 17ab started: {ROUTE}, images=1, choices=2, stream=False"
    assert ended.startswith("request 17ab ended ")
    assert ended.endswith(" s after its arrival: length, stop")
    assert body["id"] == "chatcmpl-17ab"
    assert choice_id(call.request_id, 1).startswith("17ab-")


def test_the_end_of_a_failed_request_is_logged_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(call: GenerateCall, deltas: DeltaStream, resources: RequestResources) -> None:
        raise Overloaded("the queue is full")

    async def run() -> None:
        task, resources = start(fail, generate_call())
        with pytest.raises(Overloaded):
            await anext(task.deltas)
        assert resources.num_released == 1

    asyncio.run(run())
    assert lines(caplog)[1].endswith(": Overloaded: the queue is full")


@pytest.mark.parametrize("by_client", [True, False])
def test_the_end_of_a_cancelled_request_is_logged_with_the_cause(
    by_client: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        task, _ = start(lambda *args: asyncio.sleep(60), generate_call())
        if by_client:
            task.abort()
        else:
            task.cancel()
        with pytest.raises(Unavailable):
            await anext(task.deltas)

    asyncio.run(run())
    cause = "aborted, its answer is no longer read" if by_client else "Unavailable: the server is shutting down"
    assert lines(caplog)[1].endswith(f": {cause}")


def test_of_several_errors_the_client_sees_the_one_it_can_act_on_and_the_others_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mmserve.httpserver.request.task")
    errors = [ValueError("a bug"), Unavailable("no space"), MediaError("no picture", param="messages[0]")]

    async def fail(call: GenerateCall, deltas: DeltaStream, resources: RequestResources) -> None:
        raise ExceptionGroup("all", errors)

    async def run() -> MmserveError:
        task, _ = start(fail, generate_call(request_id="17ab"))
        with pytest.raises(MmserveError) as raised:
            await anext(task.deltas)
        return raised.value

    shown = asyncio.run(run())
    assert (type(shown), shown.message, shown.param) == (MediaError, "no picture", "messages[0]")
    logged = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert logged == [
        (logging.INFO, "request 17ab also failed: Unavailable: no space"),
        (logging.ERROR, "request 17ab failed"),
    ]
    assert caplog.records[1].exc_info is not None, "a bug is logged with its traceback"


def test_nothing_is_logged_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mmserve.httpserver.request.task")

    async def run() -> None:
        task, _ = start(answer, generate_call(n=2))
        assert [delta.index async for delta in task.deltas] == [1, 0]
        await task.task

    asyncio.run(run())
    assert not caplog.records
