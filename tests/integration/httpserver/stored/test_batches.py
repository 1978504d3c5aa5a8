"""Files and batches with OpenAI's own client: a real HTTP worker, a directory, and an engine that is a fake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import openai
import pytest
from openai.types import Batch

from mmserve.httpserver.api.openai.batches import one_run, routes
from mmserve.messages.request import MAX_PRIORITY, GenerateRequest
from tests.fakes.http.http_upstream import Upstream, say, say_then_hold
from tests.fakes.http.http_worker import Worker, http_worker, run

KEYS = "alice alice-key\nbob bob-key\n"


def _line(name: str, **fields: Any) -> str:
    body = {"model": "stub", "messages": [{"role": "user", "content": name}], **fields}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body})


async def _create(client: openai.AsyncOpenAI, *lines: str, **fields: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **fields
    )


async def _until(client: openai.AsyncOpenAI, id: str, *statuses: str) -> Batch:
    async with asyncio.timeout(20):
        while (batch := await client.batches.retrieve(id)).status not in statuses:  # noqa: ASYNC110 - as clients do
            await asyncio.sleep(0.01)
    return batch


async def _content(client: openai.AsyncOpenAI, id: str | None) -> dict[str | None, Any]:
    assert id is not None
    lines = (await client.files.content(id)).text.splitlines()
    found = {line["custom_id"]: line for line in map(json.loads, lines)}
    assert len(found) == len(lines)
    return found


@asynccontextmanager
async def _worker(directory: Path, **config: Any) -> AsyncIterator[tuple[Worker, openai.AsyncOpenAI]]:
    async with http_worker(batch_dir=str(directory), **config) as worker, worker.client("alice-key") as client:
        worker.upstream.behave = say("hello")
        yield worker, client


def _test(directory: Path, test: Callable[[Worker, openai.AsyncOpenAI], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        async with _worker(directory, **config) as (worker, client):
            await test(worker, client)

    run(main)


def test_a_batch_is_answered_and_one_bad_line_harms_one_line(tmp_path: Path) -> None:
    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        priorities = []

        async def behave(upstream: Upstream, request: GenerateRequest) -> None:
            priorities.append(request.priority)
            await say("hello")(upstream, request)

        worker.upstream.behave = behave
        batch = await _create(client, _line("a"), _line("hot", temperature=9), _line("b"), metadata={"k": "v"})
        assert batch.status == "validating"
        batch = await _until(client, batch.id, "completed")
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}
        assert batch.metadata == {"k": "v"}
        assert batch.usage is not None
        assert batch.usage.output_tokens == 10
        answers, errors = await _content(client, batch.output_file_id), await _content(client, batch.error_file_id)
        texts = [line["response"]["body"]["choices"][0]["message"]["content"] for line in answers.values()]
        assert texts == ["hello"] * 2
        assert answers.keys() == {"a", "b"}
        assert answers["a"]["response"]["status_code"] == 200
        assert errors["hot"]["response"]["status_code"] == 400
        assert errors["hot"]["response"]["body"]["error"]["param"] == "temperature"
        assert priorities == [MAX_PRIORITY] * 2
        assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
        await worker.idle()

    _test(tmp_path, test)


def test_files_are_kept_listed_and_deleted(tmp_path: Path) -> None:
    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        content = b"x\r\n" * 500_000
        expiry: Any = {"anchor": "created_at", "seconds": 3600}
        file = await client.files.create(file=("a.jsonl", content), purpose="batch", expires_after=expiry)
        assert (file.bytes, file.filename, file.purpose) == (len(content), "a.jsonl", "batch")
        assert file.expires_at == file.created_at + 3600
        assert (await client.files.content(file.id)).content == content
        other = await client.files.create(file=("b.jsonl", b"y"), purpose="batch")
        assert [one.id async for one in client.files.list(limit=1)] == [other.id, file.id]
        assert (await client.files.retrieve(file.id)) == file
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError, match="no file"):
            await client.files.content(file.id)
        await worker.idle()

    _test(tmp_path, test)


def test_a_batch_that_cannot_be_run_says_which_lines_are_wrong(tmp_path: Path) -> None:
    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        other = _line("c").replace("chat/completions", "embeddings")
        batch = await _create(client, _line("a"), "{", _line("a"), other)
        batch = await _until(client, batch.id, "failed")
        assert batch.errors is not None
        found = [(error.line, error.code) for error in batch.errors.data or ()]
        assert found == [(2, "invalid_json_line"), (3, "duplicate_custom_id"), (4, "mismatched_endpoint")]
        assert batch.output_file_id is None
        empty = await _create(client, "")
        assert (await _until(client, empty.id, "failed")).errors is not None

    _test(tmp_path, test)


def test_a_cancelled_batch_keeps_what_is_answered(tmp_path: Path) -> None:
    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        begun = 0

        async def behave(upstream: Upstream, request: GenerateRequest) -> None:
            nonlocal begun
            begun += 1
            if begun > 9:
                await asyncio.sleep(0.2)  # time for the worker to see that the batch is cancelled
            await say_then_hold("he", "llo")(upstream, request)

        worker.upstream.behave = behave
        running = await _create(client, *(_line(f"{number:02}") for number in range(30)))
        waiting = await _create(client, _line("never"))
        await worker.until(lambda: len(worker.context.request_tasks) == 9)
        for batch in (running, waiting):
            assert (await client.batches.cancel(batch.id)).status == "cancelling"
        worker.upstream.release.set()
        running = await _until(client, running.id, "cancelled")
        answers = await _content(client, running.output_file_id)
        assert 9 <= len(answers) < 30
        errors = await _content(client, running.error_file_id)
        assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
        assert sorted(map(str, [*answers, *errors])) == [f"{number:02}" for number in range(30)]
        waiting = await _until(client, waiting.id, "cancelled")
        assert (await _content(client, waiting.error_file_id)).keys() == {"never"}
        assert waiting.output_file_id is None
        assert waiting.request_counts is not None
        assert waiting.request_counts.model_dump() == {"total": 1, "completed": 0, "failed": 1}
        assert (await client.batches.cancel(waiting.id)).status == "cancelled"
        done = await _until(client, (await _create(client, _line("a"))).id, "completed")
        with pytest.raises(openai.BadRequestError, match="completed already"):
            await client.batches.cancel(done.id)

    _test(tmp_path, test, max_num_seqs=1)


def test_a_batch_goes_on_after_a_restart(tmp_path: Path) -> None:
    answered: list[bytes] = []

    async def main() -> None:
        async with _worker(tmp_path, max_num_seqs=1, shutdown_timeout=0.1) as (worker, client):
            held = asyncio.Event()

            async def behave(upstream: Upstream, request: GenerateRequest) -> None:
                if len(answered) < 12:
                    answered.append(b"")
                    await say("hello")(upstream, request)
                else:
                    held.set()  # the engine takes the line, and the server ends before its answer

            worker.upstream.behave = behave
            batch = await _create(client, *(_line(f"{number:02}") for number in range(40)))
            await held.wait()
        async with _worker(tmp_path) as (worker, client):
            batch = await _until(client, batch.id, "completed")
            assert batch.request_counts is not None
            assert batch.request_counts.completed == 40
            assert len(await _content(client, batch.output_file_id)) == 40
            assert batch.error_file_id is None
            assert sum(isinstance(one, GenerateRequest) for one in worker.upstream.received) <= 28

    run(main)


def test_an_expired_batch_keeps_what_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_WINDOW_S", 1)

    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        worker.upstream.behave = say_then_hold("he", "llo")
        batch = await _create(client, *(_line(f"{number:02}") for number in range(30)))
        assert batch.expires_at == batch.created_at + 1
        await worker.until(lambda: len(worker.context.request_tasks) == 9)
        await asyncio.sleep(1.1)  # its timer was set before this one
        worker.upstream.release.set()
        batch = await _until(client, batch.id, "expired")
        assert len(await _content(client, batch.output_file_id)) == 9
        errors = await _content(client, batch.error_file_id)
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 30, "completed": 9, "failed": 21}
        assert batch.expired_at is not None

    _test(tmp_path, test, max_num_seqs=1)


def test_a_batch_that_expired_while_no_server_ran_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with _worker(tmp_path, max_num_seqs=1, shutdown_timeout=0.1) as (worker, client):
            worker.upstream.behave = say_then_hold("he", "llo")  # no line has an answer when the server ends
            running = await _create(client, *(_line(f"{number:02}") for number in range(12)))
            waiting = await _create(client, _line("never"))
            await worker.until(lambda: len(worker.context.request_tasks) == 9)
        monkeypatch.setattr(one_run, "today_s", lambda: running.expires_at)
        async with _worker(tmp_path, max_num_seqs=20) as (worker, client):
            for batch, names in ((running, {f"{number:02}" for number in range(12)}), (waiting, {"never"})):
                batch = await _until(client, batch.id, "expired")
                assert batch.output_file_id is None
                assert (await _content(client, batch.error_file_id)).keys() == names
                assert batch.request_counts is not None
                assert batch.request_counts.model_dump() == {"total": len(names), "completed": 0, "failed": len(names)}
            assert not [one for one in worker.upstream.received if isinstance(one, GenerateRequest)]

    run(main)


def test_files_and_batches_belong_to_a_key(tmp_path: Path) -> None:
    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        batch = await _create(client, _line("a"))
        batch = await _until(client, batch.id, "completed")
        async with worker.client("bob-key") as other:
            assert [one.id async for one in other.files.list()] == []
            assert [one.id async for one in other.batches.list()] == []
            for ask in (
                lambda: other.batches.retrieve(batch.id),
                lambda: other.batches.cancel(batch.id),
                lambda: other.files.content(batch.output_file_id or ""),
                lambda: other.files.delete(batch.input_file_id),
                lambda: other.batches.create(
                    input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    await ask()

    (tmp_path / "keys").write_text(KEYS)
    _test(tmp_path / "batches", test, api_key_file=str(tmp_path / "keys"))


def test_sizes_are_capped(tmp_path: Path) -> None:
    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APIStatusError, match="--batch-file-mb") as caught:
            await client.files.create(file=("a", b"x" * 1_200_000), purpose="batch")
        assert caught.value.status_code == 413
        await client.files.create(file=("a", b"x" * 900_000), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="--batch-storage-mb"):
            await client.files.create(file=("a", b"x" * 900_000), purpose="batch")
        assert len(list((tmp_path / "files").iterdir())) == 1
        await worker.idle()

    _test(tmp_path, test, batch_file_mb=1.0, batch_storage_mb=1.5)


def test_wrong_requests_name_the_field(tmp_path: Path) -> None:
    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        file = await client.files.create(file=("a", b"x"), purpose="batch")
        good = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            for wrong, param in (
                ({"endpoint": "/metrics"}, "endpoint"),
                ({"completion_window": "1h"}, "completion_window"),
                ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
                ({"no_such": 1}, "no_such"),
                ({"metadata": {"k": "v" * 513}}, "metadata"),
            ):
                answer = await http.post("/v1/batches", json=good | wrong)
                assert answer.status_code == 400, wrong
                assert param in answer.json()["error"]["message"] + str(answer.json()["error"]["param"])
            for files, data in (
                ({"file": b"x"}, {"purpose": "fine-tune"}),
                ({"file": b"x"}, {}),
                ({"other": b"x"}, {"purpose": "batch"}),
                ({"file": b"x"}, {"purpose": "batch", "more": "1"}),
            ):
                assert (await http.post("/v1/files", files=files, data=data)).status_code == 400, (files, data)
            for path in ("/v1/files?limit=0", "/v1/files?order=up", "/v1/batches?limit=101"):
                assert (await http.get(path)).status_code == 400, path
            for path in ("/v1/files?after=x", "/v1/batches?after=x", "/v1/batches/x", "/v1/files/..%2Fbatches.sqlite"):
                assert (await http.get(path)).status_code == 404, path
        assert len(list((tmp_path / "files").iterdir())) == 1

    _test(tmp_path, test)


def test_without_a_directory_the_routes_say_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with http_worker() as worker, worker.client() as client:
            with pytest.raises(openai.NotFoundError, match="--batch-dir"):
                await client.batches.list()
            with pytest.raises(openai.NotFoundError, match="--batch-dir"):
                await client.files.create(file=("a", b"x"), purpose="batch")

    run(main)


def test_the_answers_are_as_described(tmp_path: Path) -> None:
    async def test(worker: Worker, client: openai.AsyncOpenAI) -> None:
        batch = await _until(client, (await _create(client, _line("a"))).id, "completed")
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            paths = (await http.get("/openapi.json")).json()["paths"]
            for path in ("/v1/files", "/v1/files/{id}", "/v1/batches", "/v1/batches/{id}"):
                id = batch.id if "batches" in path else batch.input_file_id
                answer = await http.get(path.replace("{id}", id))
                schema = paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
                jsonschema.validate(answer.json(), schema)

    _test(tmp_path, test)
