"""Responses in the background: polled, followed and cancelled at any worker, and what ends them early."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import tokenizers

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import RETIRE
from mmserve.ipc.links.codec import Codec
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import TIMEOUT_S, Behaviour, Upstream, say
from tests.fakes.http.http_worker import http_worker, run
from tests.fakes.models.chat_models import deployment_of, write_chat_model

ASK: dict[str, Any] = {"model": "tiny", "input": "A", "background": True}


class Workers:
    """Worker processes of one server, with an engine in the test."""

    def __init__(self, deployment: Deployment, stack: AsyncExitStack, upstream: Upstream) -> None:
        self.deployment = deployment
        self.upstream = upstream
        self.clients: list[openai.AsyncOpenAI] = []
        self.processes: list[asyncio.subprocess.Process] = []
        self._stack = stack

    async def start(self, index: int) -> None:
        """Start a worker process, and wait until it serves."""
        file = Path(self.deployment.run_dir) / "deployment"
        codec: Codec[Deployment] = Codec(Deployment)
        file.write_bytes(codec.encode(self.deployment))
        command = [sys.executable, "-m", "tests.integration.httpserver.worker_main", str(file), str(index)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        self._stack.push_async_callback(_end, process)
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(await process.stdout.readline())}/v1"
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT_S)
        self.clients.append(await self._stack.enter_async_context(client))
        self.processes.append(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


@asynccontextmanager
async def workers(directory: Path, **config: Any) -> AsyncIterator[Workers]:
    """Two workers."""
    async with AsyncExitStack() as stack:
        run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="test-mmserve-"))
        checkpoint = write_chat_model(directory, images=False)
        deployment = deployment_of(checkpoint, run_dir=run_dir, http_workers=2, **config)
        upstream = await stack.enter_async_context(Upstream(Endpoints(run_dir), http_workers=2))
        made = Workers(deployment, stack, upstream)
        for index in range(2):
            await made.start(index)
        upstream.say_phase()
        yield made


async def until(client: openai.AsyncOpenAI, id: str, *statuses: str) -> Any:
    """Poll the response until it has one of these statuses."""
    async with asyncio.timeout(TIMEOUT_S):
        while (found := await client.responses.retrieve(id)).status not in statuses:  # noqa: ASYNC110 - as clients do
            await asyncio.sleep(0.01)
    return found


async def created(client: openai.AsyncOpenAI, **fields: Any) -> Any:
    """A response in the background, once the worker is ready."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await client.responses.create(**(ASK | fields))
            except openai.InternalServerError:
                await asyncio.sleep(0.02)


def say_then_hold(directory: Path, text: str, rest: str) -> Behaviour:
    """Reply with ``text``, then with ``rest`` once ``upstream.release`` is set."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = [tokenizer.encode(one, add_special_tokens=False).ids for one in (text, rest)]

    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, ids[0])
        await upstream.release.wait()
        upstream.reply(request, [*ids[1], *request.sampling.eos_token_ids[:1]], finish="stop")

    return behave


def numbers(events: list[Any]) -> list[int]:
    return [event.sequence_number for event in events]


def test_a_response_runs_on_and_is_polled_followed_and_continued_at_another_worker(tmp_path: Path) -> None:
    async def test() -> None:
        async with workers(tmp_path) as made:
            one, two = made.clients
            made.upstream.behave = say_then_hold(tmp_path, "so", " it ends")
            response = await created(one)
            assert (response.status, response.background, response.output) == ("queued", True, [])
            assert (await until(two, response.id, "in_progress")).output == []
            with pytest.raises(openai.BadRequestError) as refused:
                await two.responses.create(model="tiny", input="B", previous_response_id=response.id)
            assert refused.value.param == "previous_response_id"
            stream = await two.responses.retrieve(response.id, stream=True)
            events = []
            async for event in stream:
                events.append(event)
                if event.type == "response.output_text.delta":
                    made.upstream.release.set()
            assert numbers(events) == [*range(len(events))]
            names = [event.type.removeprefix("response.") for event in events]
            assert names[:4] == ["created", "queued", "in_progress", "output_item.added"]
            assert names[-1] == "completed"
            final = events[-1].response
            assert final.output_text == "so it ends"
            assert final == await one.responses.retrieve(response.id) == await two.responses.retrieve(response.id)
            assert [event async for event in await one.responses.retrieve(response.id, stream=True)] == events
            after = await two.responses.retrieve(response.id, stream=True, starting_after=4)
            assert [event async for event in after] == events[5:]
            assert (await two.responses.cancel(response.id)).status == "completed"
            continued = await two.responses.create(model="tiny", input="B", previous_response_id=response.id)
            assert continued.status == "completed"

    run(test)


def test_the_stream_of_a_response_can_be_left_and_resumed(tmp_path: Path) -> None:
    async def test() -> None:
        async with workers(tmp_path) as made:
            one, two = made.clients
            made.upstream.behave = say_then_hold(tmp_path, "so", " it ends")
            seen = []
            async with await created(one, stream=True) as stream:
                async for event in stream:
                    seen.append(event)
                    if event.type == "response.output_text.delta":
                        break
            id = seen[0].response.id
            resumed = await two.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
            made.upstream.release.set()
            seen += [event async for event in resumed]
            assert numbers(seen) == [*range(len(seen))]
            assert seen[-1].response.output_text == "so it ends"

    run(test)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_response_is_cancelled_or_deleted_at_another_worker(tmp_path: Path, deleted: bool) -> None:
    async def test() -> None:
        async with workers(tmp_path) as made:
            one, two = made.clients
            made.upstream.behave = say_then_hold(tmp_path, "so", "")
            stream = await created(one, stream=True)
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
            (id,) = [request.id.rpartition("-")[0] for request in made.upstream.requests()]
            id = f"resp_{id}"
            if deleted:
                await two.responses.delete(id)
                with pytest.raises(openai.APIError, match="no response"):
                    _ = [event async for event in stream]
                with pytest.raises(openai.NotFoundError):
                    await one.responses.retrieve(id)
            else:
                cancelled = await two.responses.cancel(id)
                assert (cancelled.status, cancelled.output_text) == ("cancelled", "so")
                assert cancelled.output[0].status == "incomplete"
                last = [event async for event in stream][-1]
                assert last.type == "response.incomplete"
                assert last.response == await one.responses.retrieve(id) == await one.responses.cancel(id)
            await made.upstream.until(lambda: bool(made.upstream.aborts()))

    run(test)


def test_a_response_fails_when_its_worker_is_killed(tmp_path: Path) -> None:
    async def test() -> None:
        async with workers(tmp_path) as made:
            one, two = made.clients
            made.upstream.behave = say_then_hold(tmp_path, "so", "")
            response = await created(one)
            followed = await two.responses.retrieve(response.id, stream=True)
            async for event in followed:
                if event.type == "response.output_text.delta":
                    break
            made.processes[0].kill()
            with pytest.raises(openai.APIError, match="has ended"):
                _ = [event async for event in followed]
            found = await two.responses.retrieve(response.id)
            assert (found.status, found.error.code, found.output_text) == ("failed", "server_error", "so")

    run(test)


def test_a_worker_that_starts_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    async def test() -> None:
        async with workers(tmp_path) as made:
            one, two = made.clients
            made.upstream.behave = say_then_hold(tmp_path, "so", "")
            response = await created(one)
            await until(two, response.id, "in_progress")
            made.processes[0].kill()
            await made.processes[0].wait()
            store = sqlite3.connect(Path(made.deployment.run_dir) / "responses.db")
            status = "SELECT status, runner IS NULL FROM responses"
            assert store.execute(status).fetchall() == [("in_progress", 0)]
            await made.start(0)
            assert store.execute(status).fetchall() == [("failed", 1)]
            store.close()

    run(test)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("signum", [signal.SIGTERM, RETIRE])
def test_a_worker_that_goes_waits_for_a_response_and_fails_one_that_takes_too_long(
    tmp_path: Path, signum: signal.Signals, ends: bool
) -> None:
    async def test() -> None:
        async with workers(tmp_path, shutdown_timeout=20.0 if ends else 0.5) as made:
            one, two = made.clients
            made.upstream.behave = say_then_hold(tmp_path, "so", " it ends")
            response = await created(one)
            await until(two, response.id, "in_progress")
            made.processes[0].send_signal(signum)
            if ends:
                asyncio.get_running_loop().call_later(1.5, made.upstream.release.set)
            found = await until(two, response.id, "completed", "failed")
            await made.processes[0].wait()
            if ends:
                assert found.output_text == "so it ends"
            else:
                assert (found.status, found.error.code) == ("failed", "server_error")
                assert "shutting down" in found.error.message

    run(test)


def test_what_a_background_response_needs_is_refused_where_it_is_missing(tmp_path: Path) -> None:
    async def test() -> None:
        async with http_worker(responses_store_mb=0) as worker, worker.client() as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model="stub", input="A", background=True)
            assert refused.value.param == "background"
            await worker.idle()
        async with http_worker() as worker, worker.client() as client:
            whole = await client.responses.create(model="stub", input="A")
            for options, param in (
                ({"stream": True}, "stream"),
                ({"starting_after": 1}, "starting_after"),
                ({"stream": True, "starting_after": -1}, "starting_after"),
            ):
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.responses.retrieve(whole.id, **options)
                assert refused.value.param == param
            with pytest.raises(openai.BadRequestError):
                await client.responses.cancel(whole.id)
            await worker.idle()

    run(test)


def test_a_response_that_fails_says_why_and_everything_is_released() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say("x", finish="error")
            response = await client.responses.create(model="stub", input="A", background=True)
            found = await until(client, response.id, "failed")
            assert found.error.code == "server_error"
            worker.upstream.behave = say("hello")
            cut = await client.responses.create(model="stub", input="A", background=True, max_output_tokens=2)
            found = await until(client, cut.id, "incomplete")
            assert (found.output_text, found.incomplete_details.reason) == ("he", "max_output_tokens")
            with pytest.raises(openai.APIError):
                _ = [event async for event in await client.responses.retrieve(response.id, stream=True)]
            await worker.idle()
            assert worker.leases.released == worker.leases.held

    run(test)


def test_a_streamed_response_can_be_read_again_event_by_event() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say("grün 你好 🎉", group=2)
            first = [
                e async for e in await client.responses.create(model="stub", input="A", stream=True, top_logprobs=1)
            ]
            id = first[0].response.id
            again = [event async for event in await client.responses.retrieve(id, stream=True)]
            assert again == first
            after = [e async for e in await client.responses.retrieve(id, stream=True, starting_after=3)]
            assert after == first[4:]
            await worker.idle()

    run(test)
