"""OpenAI bodies to calls: what is accepted, and that every refusal names its field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mmserve.httpserver.api.openai.fields import ChatRequest
from mmserve.httpserver.call import GenerateCall, MediaRef
from mmserve.httpserver.conversation import MediaPart, TextPart
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest, MmserveError, ModelNotFound
from tests.fakes.http.http_services import EOS, make_deployment
from tests.fakes.ranks.calls import messages_of, parse_chat

USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}


CONTEXT = make_deployment("/nowhere").max_model_len


def read(body: dict[str, Any] | bytes, *, vision: bool = True, **config: object) -> GenerateCall:
    data = body if isinstance(body, bytes) else json.dumps({"model": "stub", "messages": [USER]} | body).encode()
    model = ServedModel.of(make_deployment("/nowhere", vision=vision, **config))
    return parse_chat(data, model, 1.5)


def test_a_plain_request() -> None:
    call = read({"model": "stub"})
    assert messages_of(call)[0].content == (TextPart("hi"),)
    assert (call.n, call.stream, call.stop, call.arrival_s) == (1, False, (), 1.5)
    assert (call.sampling.max_tokens, call.sampling.temperature) == (0, 1.0)
    assert call.sampling.eos_token_ids == (EOS,)


def test_null_means_absent() -> None:
    nothing = {
        field.name: None for field in msgspec.structs.fields(ChatRequest) if field.name not in ("messages", "model")
    }
    assert len(nothing) > 40
    asked, plain = read(nothing | {"seed": 1}), read({"seed": 1})
    assert replace(asked, request_id="") == replace(plain, request_id="")


def test_fields_for_a_hosted_services_account_change_nothing() -> None:
    account = {
        "user": "ann",
        "safety_identifier": "hash",
        "metadata": {"team": "a"},
        "service_tier": "auto",
        "prompt_cache_key": "key",
        "prompt_cache_retention": "24h",
        "store": False,
    }
    assert replace(read(account | {"seed": 1}), request_id="") == replace(read({"seed": 1}), request_id="")


def test_parts_keep_their_order_and_images_are_numbered_across_messages() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
        {"role": "user", "content": [IMAGE, {"type": "text", "text": "and"}, {"type": "image_url", "image_url": "b"}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "then"}, IMAGE]},
    ]
    call = read({"messages": messages})
    assert [message.role for message in messages_of(call)] == ["system", "user", "assistant", "user"]
    assert messages_of(call)[1].content == (MediaPart(0), TextPart("and"), MediaPart(1))
    assert messages_of(call)[3].content == (TextPart("then"), MediaPart(2))
    assert call.media[1] == MediaRef("b", "messages[1].content[2].image_url")
    assert call.media[2] == MediaRef("data:x", "messages[3].content[1].image_url.url")


@pytest.mark.parametrize("name", ["stub", "/models/stub-7b", "stub-7b", "llava"])
def test_the_model_is_accepted_by_any_of_its_names(name: str) -> None:
    assert read({"model": name}).model == "stub"


def test_a_requests_own_timeout_is_in_seconds() -> None:
    assert read({"timeout": 2}).timeout_s == 2.0
    assert read({}).timeout_s is None


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m" * 256},
        {"messages": [{"role": "r" * 100_000, "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "t" * 100_000}]}]},
        {"logit_bias": {"9" * 4000: 1}},
        {"min_tokens": 10**4000, "max_tokens": 1},
        {"k" * 100_000: 1, "temperature": "t" * 100_000},
        {"response_format": {"type": "t" * 100_000}},
    ],
    ids=lambda body: next(iter(body))[:20],
)
def test_an_error_repeats_little_of_what_the_client_wrote(body: dict[str, Any]) -> None:
    with pytest.raises(MmserveError) as refused:
        read(body)
    assert len(refused.value.message) < 250
    assert len(refused.value.param or "") < 50


def test_another_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound) as refused:
        read({"model": "gpt-4"})
    assert refused.value.param == "model"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"timeout": 0}, "timeout"),
        ({"model": "m" * 257}, "model"),
        ({"cache_salt": "s" * 257}, "cache_salt"),
        ({"stop": "s" * 1025}, "stop"),
        ({"stop": ["s" * 1025]}, "stop[0]"),
        ({"logit_bias": {str(id): 1 for id in range(4097)}}, "logit_bias"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x/" + "y" * 8192}]}]},
            "messages[0].content[0].image_url",
        ),
        ({"timeout": 86_401}, "timeout"),
        ({"timeout": "1"}, "timeout"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_k": 2**64}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": "x"}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"include": True}}, "stream_options.include"),
        ({"zzz": [1]}, "zzz"),
        ({"guided_chioce": None}, "guided_chioce"),
        ({"store": True}, "store"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "cat": 1}]}, "messages[0].cat"),
        ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages[0].name"),
        ({"messages": [USER, {"role": "user", "content": ["x"]}]}, "messages[1].content[0]"),
        ({"messages": [USER, {"role": "user", "content": [{"type": "poem"}]}]}, "messages[1].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        (
            {"messages": [{"role": "user", "content": [IMAGE, {"type": "image_url", "image_url": {"url": None}}]}]},
            "messages[0].content[1].image_url.url",
        ),
    ],
)
def test_every_refusal_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(body)
    assert refused.value.param == param
    assert refused.value.status == 400


def test_images_for_a_text_model_and_too_many_images_name_the_part() -> None:
    body = {"messages": [USER, {"role": "user", "content": [IMAGE, IMAGE, IMAGE]}]}
    with pytest.raises(InvalidRequest, match="takes no images") as refused:
        read(body, vision=False)
    assert refused.value.param == "messages[1].content[0].type"
    with pytest.raises(InvalidRequest, match="more than 2") as refused:
        read(body, limit_mm_per_prompt=2)
    assert refused.value.param == "messages[1].content[2].type"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"messages": "\xff"}', b'"\\ud800"', b"[]", b"[" * 200_000, b'{"a": NaN}']
)
def test_a_body_that_is_not_a_json_object_is_an_invalid_request(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(body)


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs(body: dict[str, Any], asked: int | None) -> None:
    assert read(body).sampling.logprobs == asked


def test_seeds() -> None:
    assert read({"seed": 5}).sampling.seed == 5
    assert read({"seed": -1}).sampling.seed == 2**63 - 1
    assert read({"seed": 2**64}).sampling.seed == 0
    assert read({}).sampling.seed != read({}).sampling.seed
    assert read({"temperature": 0}, seed=9).sampling.seed == 9


@pytest.mark.parametrize("content", ["", [{"type": "text", "text": ""}] * 50])
def test_more_messages_or_parts_than_context_tokens_are_refused(content: Any) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        read({"messages": [{"role": "user", "content": content}] * (CONTEXT + 1)})
    assert refused.value.param == "messages"
    assert len(messages_of(read({"messages": [{"role": "user", "content": ""}] * CONTEXT}))) == CONTEXT


def test_a_refusal_is_read_as_the_content_of_a_message_without_content() -> None:
    message = {"role": "assistant", "content": None, "refusal": "I cannot."}
    assert messages_of(read({"messages": [USER, message]}))[1].content == (TextPart("I cannot."),)


@pytest.mark.parametrize("field", ["annotations", "parsed", "provider_specific_fields", "thinking_blocks"])
def test_what_clients_add_to_an_answer_may_come_back_with_it(field: str) -> None:
    answer = {"role": "assistant", "content": "hi"}
    plain, repeated = (
        messages_of(read({"messages": [USER, message]})) for message in (answer, answer | {field: [{"a": 1}]})
    )
    assert plain == repeated
