"""Requests with an image that fail, are refused or are dropped at any step: everything is released exactly once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from mmserve.httpserver.api.response import TaskResponse
from mmserve.httpserver.call import MediaRef
from mmserve.httpserver.conversation import MediaPart, Message
from mmserve.messages.request import GenerateRequest
from mmserve.runtime.errors import MediaError
from tests.fakes.http.http_services import StubMedia
from tests.fakes.http.http_upstream import Upstream, say, say_then_hold
from tests.fakes.http.http_worker import http_worker, run
from tests.fakes.ranks.calls import generate_call
from tests.integration.httpserver.limits.test_budgets import _body, _post
from tests.integration.httpserver.pictures.test_abort_stages import scene
from tests.unit.router.builders import Engine

STEPS = ("read", "hold", "build", "engine")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("step", STEPS)
def test_a_failure_at_any_step_releases_everything(step: str, stream: bool) -> None:
    async def give_up(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.behave = say("hello")
        upstream.reply(request, finish="error", message="the engine gave up")

    async def test() -> None:
        reader = StubMedia()
        async with http_worker(media=reader) as worker:
            prompts = worker.context.request_tasks._generate.__self__.prompts  # type: ignore[attr-defined]
            if step == "read":
                reader.read = _fails_once(reader.read, MediaError("cannot read the image", param=None))  # type: ignore[method-assign]
            if step == "hold":
                worker.leases._leased = _fails_once(worker.leases._leased)  # type: ignore[method-assign]
            if step == "build":
                prompts.build = _fails_once(prompts.build)
            if step == "engine":
                worker.upstream.behave = give_up
            answer = await _post(worker, _body(100_000, stream=stream))
            assert answer.status_code == (400 if step == "read" else 500)
            await worker.idle()
            assert len(worker.leases.held) == len(worker.leases.released) == (0 if step == "read" else 1)
            assert (await _post(worker, _body(100_000, stream=stream))).status_code == 200, "the next one is served"
            await worker.idle()
            assert worker.leases.held == worker.leases.released

    run(test)


def _fails_once(then: Callable[..., Any], error: Exception | None = None) -> Callable[..., Any]:
    """Raises when it is called for the first time, and does as ``then`` from the second on."""
    errors = iter([error or RuntimeError("a bug")])

    def call(*args: object) -> object:
        for each in errors:
            raise each
        return then(*args)

    return call


def test_a_prompt_that_is_too_long_is_refused_and_its_lease_released() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await _post(worker, _body(100_000, max_tokens=100_000))
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            await worker.idle()
            assert len(worker.leases.held) == len(worker.leases.released) == 1

    run(test)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_refusal_by_the_engine_releases_the_lease_once(stream: bool) -> None:
    """A real scheduler refuses a prompt larger than its KV cache; the leases are those of a real cache server."""
    leased = []

    async def test() -> None:
        async with scene() as here:

            async def refuse(upstream: Upstream, request: GenerateRequest) -> None:
                leased.append(here.num_leases)
                engine = Engine(num_blocks=1)
                engine.scheduler.receive(request)
                engine.take_replies()
                (reply,) = engine.replies[request.id, request.attempt]
                upstream.reply(request, finish=reply.finish, message=reply.message)

            here.worker.upstream.behave = refuse
            answer = await _post(here.worker, _body(2000, "What is to be seen here?", stream=stream))
            assert answer.status_code == 500
            assert "leaves no room in 16" in answer.json()["error"]["message"]
            assert leased == [1], "the image was held when the router said no"
            await here.worker.idle()
            snapshot = here.table.snapshot()
            assert snapshot.num_leases == 0
            assert [snapshot.budgets[form].used_nbytes for form in ("data", "embeddings")] == [0, 0]
            here.worker.upstream.behave = say("hello")
            assert (await _post(here.worker, _body(2000, stream=stream))).status_code == 200

    run(test)


def test_a_response_dropped_before_it_is_sent_aborts_its_request() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            worker.upstream.behave = say_then_hold("never")
            resources = worker.context.admit_request()
            await resources.reserve_body(1000, nullcontext)
            call = generate_call(
                Message("user", (MediaPart(0),)),
                request_id="r",
                media=(MediaRef("data:cat", "messages[0]"),),
                stream=True,
            )
            task = worker.context.request_tasks.start(call, resources, "/v1/chat/completions")
            response = TaskResponse(task, _send_nothing)
            del task
            await worker.upstream.until(lambda: bool(worker.upstream.requests()))
            assert (worker.leases.held, worker.leases.released) == (["r"], [])
            del response
            gc.collect()
            await worker.idle()
            assert len(worker.upstream.aborts()) == 1
            assert worker.leases.released == ["r"]

    run(test)


async def _send_nothing(task: object, send: object) -> None:
    raise AssertionError("the response must not be sent")
