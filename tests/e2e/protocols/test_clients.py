"""Clients that disconnect or send invalid requests: blocks and leases are freed, errors name the field."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.e2e.stack import Stack
from tests.fakes.pictures.cache import until
from training.sample import samples

LONG = {"max_tokens": 900, "extra_body": {"ignore_eos": True}}


def _assert_all_free(stack: Stack) -> None:
    assert stack.eventually("num_requests_running", 0) == 0
    assert stack.eventually("num_requests_in_flight", 0) == 0
    assert stack.eventually("mm_leases", 0) == 0
    assert stack.eventually("kv_cache_usage_perc", 0) == 0


def test_a_disconnect_during_a_stream_frees_blocks_and_leases(stack: Stack) -> None:
    async def disconnect() -> None:
        async with stack.async_client() as client:
            for sample in samples(4, seed=60, kinds=("colour",)):
                stream = await client.chat.completions.create(
                    model="llava", messages=sample.messages, stream=True, **LONG
                )
                async for event in stream:
                    if event.choices and event.choices[0].delta.content:
                        break
                await stream.close()

    asyncio.run(disconnect())
    _assert_all_free(stack)


def test_a_disconnect_without_streaming_frees_blocks_and_leases(stack: Stack) -> None:
    async def disconnect() -> None:
        async with stack.async_client() as client:
            for sample in samples(3, seed=61, kinds=("colour",)):
                with pytest.raises(openai.APITimeoutError):
                    await client.chat.completions.create(model="llava", messages=sample.messages, timeout=0.2, **LONG)

    asyncio.run(disconnect())
    _assert_all_free(stack)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"min_p": 2}}, "min_p"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "content[0]"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
    ],
)
def test_an_invalid_field_gets_a_400_that_names_it(default_stack: Stack, change: dict[str, object], param: str) -> None:
    body: dict[str, object] = {"model": "llava", "messages": [{"role": "user", "content": "hello"}], **change}
    with default_stack.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**body)  # type: ignore[call-overload]
    assert param in caught.value.response.json()["error"]["param"]


def test_models_are_listed_and_unknown_ones_refused(default_stack: Stack) -> None:
    with default_stack.client() as client:
        assert [model.id for model in client.models.list()] == ["llava"]
        assert client.models.retrieve("llava").id == "llava"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "hello"}])


def test_every_media_stage_reports_its_time(default_stack: Stack) -> None:
    sample = next(samples(1, seed=62, kinds=("colour",)))
    with default_stack.client() as client:
        client.chat.completions.create(model="llava", messages=sample.messages)
    for stage in ("fetch", "hash", "alloc", "write", "queue", "decode", "encode"):
        until(lambda name=f"mm_{stage}_seconds_count": default_stack.metric(name) >= 1)
    until(lambda: default_stack.metric("time_to_first_token_seconds_count") >= 1)
    until(lambda: default_stack.metric("mm_slots") >= 1)
