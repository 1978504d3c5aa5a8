"""Stored responses through OpenAI's SDK: continued, read, deleted, by their owner and at any worker."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fakes.http.http_upstream import say, say_then_hold
from tests.fakes.http.http_worker import Worker, http_worker, run

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 20_000}


@asynccontextmanager
async def worker_with(path: Path, **config: Any) -> AsyncIterator[Worker]:
    """A worker whose stored responses are in ``path``, which other workers of the test use as well."""
    async with http_worker(**config) as worker:
        worker.context.endpoints.responses.symlink_to(path)
        yield worker


def prompt_of(worker: Worker) -> str:
    """The text of the youngest request's prompt; an image token is a question mark."""
    return "".join(chr(id) if id < 256 else "?" for id in array("q", worker.upstream.requests()[-1].prompt_ids))


async def _to_the_end(asked: Awaitable[Any]) -> None:
    answer = await asked
    if isinstance(answer, openai.AsyncStream):
        async for _ in answer:
            pass


def test_a_response_is_continued_and_read_at_another_worker(tmp_path: Path) -> None:
    async def test() -> None:
        store = tmp_path / "responses.db"
        async with worker_with(store) as worker, worker.client() as client:
            worker.upstream.behave = say("one")
            question = {"role": "user", "content": [{"type": "input_text", "text": "A"}, IMAGE]}
            first = await client.responses.create(model="stub", input=[question], instructions="I")
            assert first.model_dump()["store"] is True
            await worker.idle()
        async with worker_with(store) as worker, worker.client() as client:
            worker.upstream.behave = say("two")
            async with client.responses.stream(model="stub", input="B", previous_response_id=first.id) as stream:
                second = await stream.get_final_response()
            # The image is that of the first request, and its instructions are not inherited.
            assert prompt_of(worker) == "A????oneB"
            assert second.previous_response_id == first.id
            third = await client.responses.create(model="stub", input="C", previous_response_id=second.id)
            assert prompt_of(worker) == "A????oneBtwoC"
            for made in (first, second, third):
                read = await client.responses.retrieve(made.id)
                for name in ("id", "status", "output_text", "usage", "created_at", "previous_response_id"):
                    assert getattr(read, name) == getattr(made, name)
                assert read.output[0].id == made.output[0].id
            await worker.idle()

    run(test)


def test_the_input_of_a_response_can_be_listed(tmp_path: Path) -> None:
    async def test() -> None:
        async with worker_with(tmp_path / "responses.db") as worker, worker.client() as client:
            items = [
                {"role": "user", "content": "A"},
                {"role": "assistant", "content": "B"},
                {"role": "user", "content": [IMAGE]},
            ]
            made = await client.responses.create(model="stub", input=items)
            newest = await client.responses.input_items.list(made.id, limit=2)
            assert newest.has_more
            assert newest.data[0].content[0].image_url == IMAGE["image_url"]
            assert newest.data[1].content[0].text == "B"
            listed = [item async for item in client.responses.input_items.list(made.id, order="asc", limit=1)]
            assert [item.content[0].type for item in listed] == ["input_text", "output_text", "input_image"]
            assert len({item.id for item in listed}) == 3
            for wrong in ({"after": "none"}, {"limit": 0}, {"order": "up"}, {"include": ["web_search_call.results"]}):
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.responses.input_items.list(made.id, **wrong)
                assert refused.value.param == next(iter(wrong))
            await worker.idle()

    run(test)


def test_a_response_that_is_deleted_or_not_to_be_stored_is_not_found(tmp_path: Path) -> None:
    async def test() -> None:
        async with worker_with(tmp_path / "responses.db") as worker, worker.client() as client:
            kept = await client.responses.create(model="stub", input="A")
            with pytest.raises(openai.BadRequestError):
                await client.responses.cancel(kept.id)
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.retrieve(kept.id, stream=True)
            assert refused.value.param == "stream"
            await client.responses.delete(kept.id)
            unkept = await client.responses.create(model="stub", input="A", store=False)
            assert unkept.model_dump()["store"] is False
            for id in (kept.id, unkept.id):
                for ask in (
                    client.responses.retrieve,
                    client.responses.delete,
                    client.responses.cancel,
                    client.responses.input_items.list,
                ):
                    with pytest.raises(openai.NotFoundError):
                        await ask(id)
                with pytest.raises(openai.NotFoundError) as missing:
                    await client.responses.create(model="stub", input="B", previous_response_id=id)
                assert missing.value.code == "previous_response_not_found"
            await worker.idle()

    run(test)


def test_a_response_is_found_only_by_the_key_that_made_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann key-of-ann\nbob key-of-bob\n")
    keys.chmod(0o600)

    async def test() -> None:
        async with (
            worker_with(tmp_path / "responses.db", api_key_file=str(keys)) as worker,
            worker.client("key-of-ann") as ann,
            worker.client("key-of-bob") as bob,
        ):
            made = await ann.responses.create(model="stub", input="A")
            assert (await ann.responses.retrieve(made.id)).id == made.id
            with pytest.raises(openai.NotFoundError):
                await bob.responses.retrieve(made.id)
            with pytest.raises(openai.NotFoundError):
                await bob.responses.create(model="stub", input="B", previous_response_id=made.id)

    run(test)


def test_a_call_is_answered_in_a_response_that_continues_it(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "O"}

    async def test() -> None:
        async with worker_with(tmp_path / "responses.db") as worker, worker.client() as client:
            made = await client.responses.create(model="stub", input=[{"role": "user", "content": "A"}, call])
            await client.responses.create(model="stub", input=[output], previous_response_id=made.id)
            assert prompt_of(worker) == "AhelloO"
            wrong = output | {"call_id": "call_2"}
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model="stub", input=[wrong], previous_response_id=made.id)
            assert refused.value.param == "input[0].call_id"
            await worker.idle()

    run(test)


def test_an_item_of_a_stored_response_is_referred_to(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann key-of-ann\nbob key-of-bob\n")
    keys.chmod(0o600)

    async def test() -> None:
        async with (
            worker_with(tmp_path / "responses.db", api_key_file=str(keys)) as worker,
            worker.client("key-of-ann") as client,
            worker.client("key-of-bob") as other,
        ):
            question = {"role": "user", "content": [{"type": "input_text", "text": "A"}, IMAGE], "id": "mine"}
            made = await client.responses.create(model="stub", input=[question])
            reference = {"type": "item_reference", "id": made.output[0].id}
            end = {"role": "user", "content": "B"}
            for items in ([reference, end], [{"id": made.output[0].id}, end]):
                await client.responses.create(model="stub", input=items)
                assert prompt_of(worker) == "helloB"
            items = [{"type": "item_reference", "id": "mine"}, reference, end]
            referring = await client.responses.create(model="stub", input=items)
            assert prompt_of(worker) == "A????helloB"
            # The items are stored themselves, so that they may be deleted where they were.
            await client.responses.delete(made.id)
            await client.responses.create(model="stub", input="C", previous_response_id=referring.id)
            assert prompt_of(worker) == "A????helloBhelloC"
            listed = [item async for item in client.responses.input_items.list(referring.id, order="asc")]
            assert [item.id for item in listed[:2]] == ["mine", made.output[0].id]
            for asking, id in ((client, "msg_none"), (other, "mine")):
                with pytest.raises(openai.NotFoundError) as missing:
                    await asking.responses.create(model="stub", input=[end, {"type": "item_reference", "id": id}])
                assert (missing.value.param, missing.value.code) == ("input[1].id", "item_not_found")
            await worker.idle()

    run(test)


def test_a_call_of_another_response_is_referred_to_and_answered(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}", "id": "fc_1"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "O"}

    async def test() -> None:
        async with worker_with(tmp_path / "responses.db") as worker, worker.client() as client:
            await client.responses.create(model="stub", input=[{"role": "user", "content": "A"}, call])
            await client.responses.create(model="stub", input=[{"type": "item_reference", "id": "fc_1"}, output])
            assert prompt_of(worker) == "O"
            wrong = [{"type": "item_reference", "id": "fc_1"}, output | {"call_id": "call_2"}]
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(model="stub", input=wrong)
            assert refused.value.param == "input[1].call_id"
            await worker.idle()

    run(test)


def test_a_conversation_is_compacted_and_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with worker_with(tmp_path / "responses.db") as worker, worker.client() as client:
            first = await client.responses.create(model="stub", input=[{"role": "user", "content": "A"}])
            worker.upstream.behave = say("in short")
            last = {"role": "user", "content": [{"type": "input_text", "text": "B"}, IMAGE]}
            compact = await client.responses.compact(model="stub", input=[last], previous_response_id=first.id)
            assert prompt_of(worker).startswith("AhelloB????Summarise")
            assert compact.object == "response.compaction"
            assert compact.usage.output_tokens == len("in short")
            *messages, summary = [item.to_dict(warnings=False) for item in compact.output]
            assert [message["content"][0]["text"] for message in messages] == ["A", "B"]
            assert summary["type"] == "compaction"
            worker.upstream.behave = say("x")
            goes_on = [*messages, summary, {"role": "user", "content": "C"}]
            await client.responses.create(model="stub", input=goes_on)
            assert prompt_of(worker) == "AB????Summary of the conversation so far:\nin shortC"
            for nothing, param in (({}, "input"), ({"input": [5]}, "input[0]")):
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.responses.compact(model="stub", **nothing)
                assert refused.value.param == param
            await worker.idle()

    run(test)


def test_the_tokens_of_an_input_are_counted_with_those_before_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with worker_with(tmp_path / "responses.db") as worker, worker.client() as client:
            made = await client.responses.create(model="stub", input="AAA")
            count = await client.responses.input_tokens.count(model="stub", input="B", previous_response_id=made.id)
            assert count.input_tokens == len("AAAhelloB")
            await worker.idle()

    run(test)


def test_a_server_without_a_store_says_so() -> None:
    async def test() -> None:
        async with http_worker(responses_store_mb=0) as worker, worker.client() as client:
            made = await client.responses.create(model="stub", input="A", store=True)
            assert made.model_dump()["store"] is False
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(made.id)
            assert not worker.context.endpoints.responses.exists()

    run(test)


def test_a_response_that_nobody_uses_is_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        async with worker_with(tmp_path / "responses.db", responses_ttl=1e-9) as worker, worker.client() as client:
            made = await client.responses.create(model="stub", input="A", store=True)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(made.id)

    run(test)


def test_a_database_that_fails_fails_no_answer(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "responses.db").write_bytes(b"no database" * 1000)
        async with worker_with(tmp_path / "responses.db") as worker, worker.client() as client:
            made = await client.responses.create(model="stub", input="A")
            assert (made.output_text, made.model_dump()["store"]) == ("hello", False)
            with pytest.raises(openai.InternalServerError) as unavailable:
                await client.responses.retrieve(made.id)
            assert unavailable.value.status_code == 503

    run(test)


def test_nothing_is_kept_of_a_response_whose_client_leaves(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "responses.db"
        async with worker_with(path) as worker, worker.client() as client:
            worker.upstream.behave = say_then_hold("one")
            async with await client.responses.create(model="stub", input="A", stream=True) as stream:
                await anext(aiter(stream))
                connection = sqlite3.connect(path)
                assert connection.execute("SELECT COUNT(*) FROM responses").fetchone() == (1,)
            await worker.idle()
            await worker.until(lambda: connection.execute("SELECT COUNT(*) FROM responses").fetchone() == (0,))
            connection.close()

    run(test)


@pytest.mark.parametrize("image", ["data:broken", "data:image/png;base64,!" + "A" * 20_000])
def test_nothing_is_kept_of_a_request_that_fails(tmp_path: Path, image: str) -> None:
    async def test() -> None:
        path = tmp_path / "responses.db"
        async with worker_with(path) as worker, worker.client() as client:
            worker.upstream.behave = say("x", finish="error")
            broken = {"role": "user", "content": [{"type": "input_image", "image_url": image}]}
            for stream in (False, True):
                with pytest.raises(openai.APIError):
                    await _to_the_end(client.responses.create(model="stub", input=[broken], stream=stream))
            await worker.idle()
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT COUNT(*) FROM responses").fetchone() == (0,)
        assert connection.execute("SELECT COUNT(*) FROM items").fetchone() == (0,)
        connection.close()

    run(test)
