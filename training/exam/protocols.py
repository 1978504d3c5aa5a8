"""Ways to ask a server for calls and JSON: each protocol, streamed and not, by the protocol's own client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
from anthropic import Anthropic
from openai import OpenAI

from training.exam.ask import Ask
from training.exam.errands import Errand, said_call
from training.exam.sets import Answer
from training.sample import Message, Sample

LONGEST_TOKENS = 200  # of an answer; the longest right one has fewer than 120
NAME = "picture"  # of a schema
ENDS = ("response.completed", "response.incomplete")


def call_text(name: str, arguments: str) -> str:
    """A call as canonical text, whatever its white space; unlike any expected one if it is no JSON."""
    try:
        return said_call(name, json.loads(arguments))
    except ValueError:
        return f"{name} {arguments!r}"


def answer(text: str, calls: Sequence[tuple[str, str]], ended: bool) -> Answer:
    """Text and calls as one canonical text."""
    lines = [text.strip(), *(call_text(name, arguments) for name, arguments in calls)]
    return Answer("\n".join(filter(None, lines)), ended)


def chat(client: OpenAI, model: str, streamed: bool, asked: Errand) -> Answer:
    """Chat completions."""
    more: dict[str, Any] = {}
    if asked.functions:
        more["tools"] = [
            {"type": "function", "function": {"name": f.name, "parameters": f.schema, "strict": asked.strict}}
            for f in asked.functions
        ]
    if asked.forced:
        more["tool_choice"] = "required"
    if asked.schema:
        more["response_format"] = {"type": "json_schema", "json_schema": {"name": NAME, "schema": asked.schema}}
    messages: Any = asked.messages
    request = {"model": model, "messages": messages, "max_tokens": LONGEST_TOKENS, "temperature": 0, **more}
    if streamed:
        with client.chat.completions.stream(**request) as stream:
            choice: Any = stream.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**request).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return answer(choice.message.content or "", calls, choice.finish_reason != "length")


def responses(client: OpenAI, model: str, streamed: bool, asked: Errand) -> Answer:
    """Responses."""
    more: dict[str, Any] = {}
    if asked.functions:
        more["tools"] = [
            {"type": "function", "name": f.name, "parameters": f.schema, "strict": asked.strict}
            for f in asked.functions
        ]
    if asked.forced:
        more["tool_choice"] = "required"
    if asked.schema:
        more["text"] = {"format": {"type": "json_schema", "name": NAME, "schema": asked.schema}}
    items: Any = [item for message in asked.messages for item in items_of(message)]
    request = {"model": model, "input": items, "max_output_tokens": LONGEST_TOKENS, "temperature": 0, **more}
    if streamed:
        with client.responses.stream(**request, store=False) as stream:
            # get_final_response refuses an answer that was cut short.
            made: Any = [event.response for event in stream if event.type in ENDS][-1]
    else:
        made = client.responses.create(**request, store=False)
    calls = [(item.name, item.arguments) for item in made.output if item.type == "function_call"]
    return answer(made.output_text, calls, made.status == "completed")


def items_of(message: Message) -> Iterator[dict[str, Any]]:
    """A chat message as items of Responses."""
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}
    if message["content"]:
        content = [
            {"type": "input_text", "text": part["text"]}
            if part["type"] == "text"
            else {"type": "input_image", "image_url": part["image_url"]["url"]}
            for part in message["content"]
        ]
        yield {"role": message["role"], "content": content}


def messages(client: Anthropic, model: str, streamed: bool, asked: Errand) -> Answer:
    """Anthropic's messages."""
    more: dict[str, Any] = {"extra_body": {"temperature": 0}}
    if asked.functions:
        more["tools"] = [{"name": f.name, "input_schema": f.schema, "strict": asked.strict} for f in asked.functions]
    if asked.forced:
        more["tool_choice"] = {"type": "any"}
    if asked.schema:
        more["extra_body"]["output_config"] = {"format": {"type": "json_schema", "schema": asked.schema}}
    turns: Any = [turn_of(message) for message in asked.messages]
    request = {"model": model, "messages": turns, "max_tokens": LONGEST_TOKENS, **more}
    if streamed:
        with client.messages.stream(**request) as stream:
            made: Any = stream.get_final_message()
    else:
        made = client.messages.create(**request)
    text = "".join(block.text for block in made.content if block.type == "text")
    calls = [(block.name, json.dumps(block.input)) for block in made.content if block.type == "tool_use"]
    return answer(text, calls, made.stop_reason != "max_tokens")


def turn_of(message: Message) -> dict[str, Any]:
    """A chat message as a turn of Anthropic's."""
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [block]}
    blocks: list[dict[str, Any]] = []
    for part in message["content"] or ():
        if part["type"] == "text":
            blocks.append({"type": "text", "text": part["text"]})
            continue
        head, _, data = part["image_url"]["url"].partition(";base64,")
        source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
        blocks.append({"type": "image", "source": source})
    for call in message.get("tool_calls", ()):
        made = call["function"]
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": made["name"], "input": json.loads(made["arguments"])}
        )
    return {"role": message["role"], "content": blocks}


def ways(base_url: str, model: str | None, api_key: str, concurrency: int) -> dict[str, Ask]:
    """Every protocol of a server, streamed and not, by name; `base_url` as OpenAI's client takes it, ending in /v1."""
    for_openai = OpenAI(base_url=base_url, api_key=api_key, max_retries=2)
    for_anthropic = Anthropic(base_url=base_url.rstrip("/").removesuffix("/v1"), api_key=api_key, max_retries=2)
    name = model or for_openai.models.list().data[0].id

    def way(ask_one: Callable[[Any, str, bool, Errand], Answer], client: OpenAI | Anthropic, streamed: bool) -> Ask:
        def one(asked: Sample) -> Answer:
            assert isinstance(asked, Errand)
            try:
                return ask_one(client, name, streamed, asked)
            except openai.LengthFinishReasonError as endless:  # only this SDK's stream raises it
                return Answer(endless.completion.choices[0].message.content or "", False)
            except (openai.BadRequestError, anthropic.BadRequestError) as refused:  # a model without tools, for example
                return Answer(refused.message, True)

        def ask_all(asked: list[Sample]) -> Iterator[Answer]:
            with ThreadPoolExecutor(concurrency) as pool:
                yield from pool.map(one, asked)

        return ask_all

    protocols: dict[str, tuple[Callable[[Any, str, bool, Errand], Answer], OpenAI | Anthropic]] = {
        "chat": (chat, for_openai),
        "responses": (responses, for_openai),
        "messages": (messages, for_anthropic),
    }
    return {
        f"{protocol}{', streamed' * streamed}": way(*found, streamed)
        for protocol, found in protocols.items()
        for streamed in (False, True)
    }
