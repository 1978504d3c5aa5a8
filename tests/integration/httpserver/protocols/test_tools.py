"""Tool calls and reasoning through chat completions, with the official SDK and an engine that plays a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from llguidance import LLMatcher

from mmserve.grammar.isolated import byte_tokenizer
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream, say
from tests.fakes.http.http_worker import Worker, http_worker, run

HERMES = """{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ tools }}{{ enable_thinking }}
{# <tool_call> {"name": ..., "arguments": ...} </tool_call> and <think> </think> #}"""
HELLO = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


async def ask(worker: Worker, **fields: Any) -> Any:
    async with worker.client() as client:
        return (await client.chat.completions.create(model="stub", messages=HELLO, **fields)).choices[0]


async def streamed(worker: Worker, **fields: Any) -> Any:
    """The choice that the SDK's helper makes of the chunks."""
    async with (
        worker.client() as client,
        client.chat.completions.stream(model="stub", messages=HELLO, **fields) as stream,
    ):
        return (await stream.get_final_completion()).choices[0]


@pytest.mark.parametrize("how", [ask, streamed])
def test_text_and_two_calls(how: Any) -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = say(f"Let me see. {CALL}\n{CALL.replace('Paris', 'Rome')}")
            choice = await how(worker, tools=[WEATHER])
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Let me see."
            calls = choice.message.tool_calls
            assert [call.function.name for call in calls] == ["weather", "weather"]
            assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Paris", "Rome"]
            assert calls[0].id.startswith("call_")
            assert calls[0].id != calls[1].id

    run(test)


@pytest.mark.parametrize("how", [ask, streamed])
def test_reasoning_before_an_answer(how: Any) -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = say("<think>\nHm, Paris.\n</think>\n\nIt rains.")
            choice = await how(worker)
            assert (choice.message.reasoning_content, choice.message.content) == ("Hm, Paris.", "It rains.")
            assert choice.finish_reason == "stop"

    run(test)


@pytest.mark.parametrize("how", [ask, streamed])
def test_without_parallel_calls_the_answer_ends_with_the_first(how: Any) -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = say(f"{CALL}\n{CALL}")
            choice = await how(worker, tools=[WEATHER], parallel_tool_calls=False)
            assert (len(choice.message.tool_calls), choice.finish_reason) == (1, "tool_calls")
            assert not choice.message.content

    run(test)


def test_without_tools_or_with_the_choice_none_a_call_is_text() -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = say(CALL)
            for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
                choice = await ask(worker, **fields)
                assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL, None, "stop")

    run(test)


def test_a_call_that_is_cut_short_ends_with_length() -> None:
    async def cut(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, CALL[:60].encode(), finish="length")

    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = cut
            choice = await ask(worker, tools=[WEATHER])
            assert choice.finish_reason == "length"
            assert choice.message.tool_calls[0].function.arguments.startswith('{"city"')

    run(test)


def test_a_stop_string_ends_the_text_and_not_the_reasoning() -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = say("<think>one. two.</think>three. four.")
            choice = await ask(worker, stop=["."])
            assert (choice.message.reasoning_content, choice.message.content) == ("one. two.", "three")

    run(test)


@pytest.mark.parametrize(
    ("choice", "param"),
    [("required", "tool_choice"), ({"type": "function", "function": {"name": "weather"}}, "tool_choice")],
)
def test_a_required_call_becomes_a_grammar(choice: Any, param: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            checked: list[tuple[str, str]] = []

            async def check(grammar: str, param: str) -> None:
                checked.append((grammar, param))

            monkeypatch.setattr("mmserve.httpserver.grammars.GrammarChecks.check", lambda self, *about: check(*about))
            worker.upstream.behave = say(CALL)
            await ask(worker, tools=[WEATHER], tool_choice=choice)
            (grammar,) = {request.sampling.grammar for request in worker.upstream.requests()}
            assert "weather" in grammar
            assert checked == [(grammar, param)]

    run(test)


def test_a_model_whose_format_is_not_known_refuses_tools() -> None:
    async def test() -> None:
        async with http_worker(template="{{ messages }}{{ tools }}") as worker:
            with pytest.raises(openai.BadRequestError, match="tool-call-parser") as refused:
                await ask(worker, tools=[WEATHER])
            assert refused.value.param == "tools"

    run(test)


def test_the_options_name_the_formats() -> None:
    async def test() -> None:
        plain = "{{ messages }}{{ tools }}"
        async with http_worker(template=plain, tool_call_parser="pythonic", reasoning_parser="think") as worker:
            worker.upstream.behave = say("<think>so</think>[weather(city='Paris')]")
            choice = await ask(worker, tools=[WEATHER])
            assert choice.message.reasoning_content == "so"
            assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris"}

    run(test)


def test_an_answer_that_begins_in_a_thought_fits_the_schema_after_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = say('so.</think>{"a": 1}')
            schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
            choice = await ask(
                worker,
                extra_body={
                    "messages": [*HELLO, {"role": "assistant", "content": "<think>Hm,"}],
                    "continue_final_message": True,
                    "structured_outputs": {"json": schema},
                },
            )
            assert choice.message.content == '{"a": 1}'
            assert choice.message.reasoning_content == "so."
            (request,) = worker.upstream.requests()
            for answer, fits in (('so.</think>{"a": 1}', True), ('so.</think>{"b": 1}', False), ('{"a": 1}', False)):
                matcher = LLMatcher(byte_tokenizer(tmp_path), request.sampling.grammar, log_level=0)
                assert not matcher.is_error(), matcher.get_error()
                encoded = list(answer.encode())
                taken = matcher.try_consume_tokens(encoded) == len(encoded)
                assert (taken and matcher.is_accepting()) == fits, answer

    run(test)


SHAPE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize("how", [ask, streamed])
def test_beside_a_response_format_the_model_may_call_a_tool(how: Any, tmp_path: Path) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "s", "schema": SHAPE}}

    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = say(CALL)
            called = await how(worker, tools=[WEATHER], response_format=response_format)
            assert (called.finish_reason, called.message.content or "") == ("tool_calls", "")
            assert json.loads(called.message.tool_calls[0].function.arguments) == {"city": "Paris"}
            worker.upstream.behave = say('{"a": 1}')
            answered = await how(worker, tools=[WEATHER], response_format=response_format)
            assert (answered.finish_reason, answered.message.content) == ("stop", '{"a": 1}')
            assert not answered.message.tool_calls
            for request in worker.upstream.requests():
                for answer, fits in ((CALL, True), ('{"a": 1}', True), ('{"b": 1}', False), ("text", False)):
                    matcher = LLMatcher(byte_tokenizer(tmp_path), request.sampling.grammar, log_level=0)
                    encoded = list(answer.encode())
                    taken = matcher.try_consume_tokens(encoded) == len(encoded)
                    assert (taken and matcher.is_accepting()) == fits, answer

    run(test)


def test_without_a_choice_the_answer_only_fits_the_format() -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            worker.upstream.behave = say("{}")
            for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
                await ask(worker, response_format={"type": "json_object"}, **fields)
            grammars = {request.sampling.grammar for request in worker.upstream.requests()}
            assert len(grammars) == 1
            assert "weather" not in grammars.pop()

    run(test)


def test_a_tool_that_cannot_be_called_beside_a_format_is_named() -> None:
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "if": {}, "then": {}}}}

    async def test() -> None:
        async with http_worker(template=HERMES) as worker:
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(worker, tools=[odd], response_format={"type": "json_object"})
            assert refused.value.param == "tools"
            await worker.idle()

    run(test)
