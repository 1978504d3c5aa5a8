"""Anthropic's SDK against the whole server: text, pictures, counts, a coding agent's conversation, errors."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import anthropic
import llm_comply
import pytest
from llm_comply.schema import SpecLoader

from tests.e2e.stack import Stack, ask
from training.sample import Sample, samples

GREEDY = {"temperature": 0}
"""Newer SDKs have no parameter for it."""


@pytest.fixture
def client(default_stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=default_stack.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def blocks_of(sample: Sample) -> list[dict[str, Any]]:
    """The only message of a sample in Anthropic's form."""
    (message,) = sample.messages
    found = []
    for part in message["content"]:
        if part["type"] == "text":
            found.append({"type": "text", "text": part["text"]})
        else:
            head, _, data = part["image_url"]["url"].partition(";base64,")
            source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
            found.append({"type": "image", "source": source})
    return found


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_answers_equal_those_of_chat_completions_streamed_and_not(
    default_stack: Stack, client: anthropic.Anthropic
) -> None:
    for sample in samples(3, seed=11):
        request: dict[str, Any] = {
            "model": "llava",
            "max_tokens": 40,
            "messages": [{"role": "user", "content": blocks_of(sample)}],
            "extra_body": GREEDY,
        }
        with default_stack.client() as chat:
            expected = ask(chat, sample.messages, max_tokens=40)
        whole = client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            streamed = stream.get_final_message()
        assert text_of(whole) == text_of(streamed) == expected
        assert (whole.stop_reason, streamed.stop_reason) == ("end_turn", "end_turn")


def test_a_count_is_what_the_answer_uses(client: anthropic.Anthropic) -> None:
    (sample,) = samples(1, seed=12, kinds=("colour",))
    picture, question = blocks_of(sample)
    if picture["type"] == "text":
        picture, question = question, picture
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [picture, question]}
    conversations: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": "hi"}],
        [{"role": "user", "content": [picture, question]}],
        [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
            {"role": "user", "content": [result]},
        ],
    ]
    counts = []
    for messages in conversations:
        count = client.messages.count_tokens(model="llava", messages=messages, system="be kind")
        usage = client.messages.create(model="llava", max_tokens=2, messages=messages, system="be kind").usage
        assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
        counts.append(count.input_tokens)
    assert min(counts[1:]) > counts[0] + 10


def agent_turns() -> list[dict[str, Any]]:
    """A coding agent's conversation: shapes as agents send them."""
    cached = {"cache_control": {"type": "ephemeral"}}
    return [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>today</system-reminder>"}]},
        {"role": "user", "content": [{"type": "text", "text": "Fix the test.", **cached}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look at both files.", "signature": "unsigned"},
                {"type": "text", "text": "I will look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/a.py", "limit": 9}},
                {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {"command": "pytest -q"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "x = 1"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "1 failed", "is_error": True, **cached},
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "system", "content": "The user has opened b.py."},
    ]


def test_a_coding_agents_conversation_runs_through_and_finds_its_prefix_in_the_cache(
    client: anthropic.Anthropic,
) -> None:
    request: dict[str, Any] = {
        "model": "llava",
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        ],
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "session"},
        "extra_headers": {"anthropic-beta": "interleaved-thinking-2025-05-14"},
        "extra_query": {"beta": "true"},
        "extra_body": {
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            **GREEDY,
        },
        "stop_sequences": ["."],
    }
    turns = agent_turns()
    with client.messages.stream(messages=turns, **request) as stream:
        first = stream.get_final_message()
    assert first.stop_reason in ("end_turn", "stop_sequence", "model_context_window_exceeded")
    turns += [{"role": "assistant", "content": text_of(first) or "yes"}, {"role": "user", "content": "and then?"}]
    request["system"][0]["text"] += " other"
    second = client.messages.create(messages=turns, **request | {"max_tokens": 5})
    assert (second.usage.cache_read_input_tokens or 0) > first.usage.input_tokens // 2


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")
def test_answers_and_errors_follow_anthropics_schema(default_stack: Stack, client: anthropic.Anthropic) -> None:
    specification = SpecLoader(str(resources.files(llm_comply) / "specs" / "anthropic.json"))
    raw = client.messages.with_raw_response.create(
        model="llava", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
    )
    assert raw.headers["request-id"]
    assert specification.validate(raw.http_response.json(), "Message") == []
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(
            model="llava",
            max_tokens=5,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
                    ],
                }
            ],
        )
    assert "messages[0].content[0].source.data" in str(refused.value)
    assert specification.validate(refused.value.body, "ErrorResponse") == []
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-opus", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
    default_stack.check_all_released()


def test_every_way_to_count_a_picture_agrees(default_stack: Stack, client: anthropic.Anthropic) -> None:
    (sample,) = samples(1, seed=909909, kinds=("colour",))
    with default_stack.client() as chat:
        answer = chat.chat.completions.create(model="llava", messages=sample.messages, max_tokens=1)
        tokens = chat.post("../tokenize", body={"messages": sample.messages}, cast_to=object)
    messages = [{"role": "user", "content": blocks_of(sample)}]
    counted = client.messages.count_tokens(model="llava", messages=messages)
    assert answer.usage is not None
    assert tokens["count"] == len(tokens["tokens"]) == counted.input_tokens == answer.usage.prompt_tokens
