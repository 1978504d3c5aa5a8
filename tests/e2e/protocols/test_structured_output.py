"""Answers that must fit a JSON schema, on whole servers: streamed or not, drawn or greedy, several choices, a killed
engine; and schemas that cannot be used."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.e2e.stack import Stack
from tests.fakes.pictures.cache import until
from training.sample import samples

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "sides": {"type": "integer", "minimum": 0, "maximum": 9},
        "name": {"type": "string", "maxLength": 8},
    },
    "required": ["colour", "sides", "name"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
MESSAGES = [{"role": "user", "content": "Hello"}]


def check(text: str | None) -> None:
    answer = json.loads(text or "")
    assert list(answer) == ["colour", "sides", "name"]
    assert answer["colour"] in ("red", "green", "blue")
    assert answer["sides"] in range(10)
    assert len(answer["name"]) <= 8


async def whole(stack: Stack, **options: Any) -> list[str]:
    async with stack.async_client() as client:
        reply = await client.chat.completions.create(
            model="llava", response_format=FORMAT, **({"messages": MESSAGES} | options)
        )
        assert {choice.finish_reason for choice in reply.choices} == {"stop"}
        return [choice.message.content or "" for choice in reply.choices]


async def streamed(stack: Stack, started: asyncio.Event | None = None, **options: Any) -> str:
    async with stack.async_client() as client:
        stream = await client.chat.completions.create(
            model="llava", response_format=FORMAT, stream=True, **({"messages": MESSAGES} | options)
        )
        text, finish = "", None
        async for event in stream:
            text += event.choices[0].delta.content or ""
            finish = event.choices[0].finish_reason or finish
            if text and started is not None:
                started.set()
        assert finish == "stop"
        return text


def test_answers_fit_their_schema_streamed_or_not_whatever_else_is_asked_for(stack: Stack) -> None:
    picture = next(iter(samples(1, seed=31_415, kinds=("colour",)))).messages
    greedy, drawn = {"temperature": 0}, {"temperature": 0.7, "seed": 5, "messages": picture}
    extra = {"min_tokens": 5, "ignore_eos": True, "top_k": 3, "repetition_penalty": 1.2}
    several = {"n": 3, "seed": 7, "logit_bias": {"50": 100, "51": 100}, "extra_body": extra}

    async def scenario() -> tuple[Any, ...]:
        return await asyncio.gather(
            whole(stack, **greedy),
            streamed(stack, **greedy),
            whole(stack, **drawn),
            streamed(stack, **drawn),
            whole(stack, **several),
        )

    greedy_whole, greedy_streamed, drawn_whole, drawn_streamed, choices = asyncio.run(scenario())
    assert greedy_whole == [greedy_streamed]
    assert drawn_whole == [drawn_streamed]
    for text in (greedy_streamed, drawn_streamed, *choices):
        check(text)


def test_text_that_the_schema_forces_takes_fewer_steps(stack: Stack) -> None:
    """With log-probabilities every token is sampled, so the answer must be the same and take more steps."""
    names = [f"attribute_number_{number}_of_the_picture" for number in range(3)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    wanted = {"structured_outputs": {"json": schema, "whitespace_pattern": ""}}

    def ask(**options: Any) -> tuple[list[Any], float, float]:
        steps, forced = stack.metric("step_seconds_count"), stack.metric("forced_tokens_total")
        with stack.client() as client:
            reply = client.chat.completions.create(
                model="llava", messages=MESSAGES, extra_body=wanted, seed=3, **options
            )
        answers = [(choice.message.content, choice.finish_reason) for choice in reply.choices]
        assert reply.usage is not None
        answers.append(reply.usage.completion_tokens)
        return answers, stack.metric("step_seconds_count") - steps, stack.metric("forced_tokens_total") - forced

    ask()  # compiles the grammar, so that no sequence is deferred
    stepwise, num_steps, num_forced = ask(logprobs=True)
    jumping, num_steps_jumping, num_forced_jumping = ask()
    assert json.loads(jumping[0][0]).keys() == set(names)
    assert jumping == stepwise
    assert not num_forced
    assert num_steps_jumping < 0.6 * num_steps
    assert num_forced_jumping > num_steps_jumping
    for options in ({"stop": "r_1_of"}, {"n": 2, "temperature": 1.2, "max_tokens": 40}):
        assert ask(**options)[0] == ask(logprobs=True, **options)[0]


def test_any_object(default_stack: Stack) -> None:
    with default_stack.client() as client:
        reply = client.chat.completions.create(
            model="llava", messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=50, temperature=0
        )
    text = reply.choices[0].message.content or ""
    assert text.startswith("{")
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "integer", "multipleOf": 999_983}, "complex"),
        ({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2000)}}, "complex"),
    ],
    ids=["unsupported", "hangs", "too many properties"],
)
def test_a_schema_that_cannot_be_used_is_refused_by_field(
    default_stack: Stack, schema: dict[str, Any], named: str
) -> None:
    with default_stack.client() as client, pytest.raises(openai.BadRequestError, match=named) as refused:
        client.chat.completions.create(
            model="llava",
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
    assert refused.value.param == "response_format.json_schema.schema"


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["router", "model_backend"])
def test_an_answer_still_fits_after_a_killed_engine(restarting_stack: Stack, victim: str) -> None:
    stack, options = restarting_stack, {"temperature": 0.7, "seed": 11}
    resent = stack.metric("requests_resent_total")

    async def scenario() -> tuple[str, str]:
        expected = await streamed(stack, **options)
        started = asyncio.Event()
        live = asyncio.create_task(streamed(stack, started, **options))
        await started.wait()
        for process in stack.processes(f"mmserve: {victim}"):
            process.kill()
        return expected, await live

    expected, seen = asyncio.run(scenario())
    until(lambda: stack.metric("requests_resent_total") > resent)
    check(seen)
    assert seen == expected
