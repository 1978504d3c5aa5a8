"""Bodies of /v1/embeddings to calls, and vectors to JSON."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from mmserve.httpserver.api.openai.embeddings import EMBEDDINGS, EmbeddingRequest, encode_vector
from mmserve.httpserver.api.protocol import parse_body
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.conversation import Conversation, WrittenPrompt
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest
from tests.fakes.http.http_services import make_deployment

USER = {"role": "user", "content": "hi"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000}}


def read(body: dict[str, Any]) -> GenerateCall:
    model = ServedModel.of(make_deployment("/nowhere"))
    return parse_body(EMBEDDINGS, json.dumps(body).encode(), model, 1.5).call


def test_inputs_become_prompts_that_are_pooled() -> None:
    call = read({"input": ["a", "b"], "model": "stub", "dimensions": 8, "user": "ann"})
    assert [prompt.content for prompt in call.prompts if isinstance(prompt, WrittenPrompt)] == ["a", "b"]
    assert (call.pooling, call.prompt_only, call.num_choices, call.stream) == (True, True, 2, False)
    (ids,) = read({"input": [1, 2], "add_special_tokens": False}).prompts
    assert ids == WrittenPrompt(array("q", [1, 2]), "input", add_special_tokens=False)


def test_a_conversation_with_pictures_is_one_prompt() -> None:
    call = read({"messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": "x"}]}]})
    (prompt,) = call.prompts
    assert isinstance(prompt, Conversation)
    assert (len(call.media), prompt.add_generation_prompt) == (1, False)
    (asked,) = read({"messages": [USER], "add_generation_prompt": True}).prompts
    assert isinstance(asked, Conversation)
    assert asked.add_generation_prompt


def test_null_means_absent() -> None:
    nothing = {field.name: None for field in msgspec.structs.fields(EmbeddingRequest) if field.name != "input"}
    assert replace(read({"input": "a"} | nothing), request_id="") == replace(read({"input": "a"}), request_id="")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "a", "messages": [USER]}, "messages"),
        ({"input": []}, "input"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "cache_salt": "s" * 257}, "cache_salt"),
        ({"input": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"messages": [USER], "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": [USER], "chat_template_kwargs": {"nothing": 1}}, "chat_template_kwargs.nothing"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"input": "a", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
        ({"input": "a", "temperature": 0}, "temperature"),
    ],
)
def test_every_refusal_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.param == param


def test_vectors_have_length_one_in_both_forms() -> None:
    hidden = np.array([3, -4, 0], "<f4").tobytes()
    assert json.loads(bytes(encode_vector(hidden, "float"))) == pytest.approx([0.6, -0.8, 0])
    packed = base64.b64decode(json.loads(bytes(encode_vector(hidden, "base64"))))
    assert np.frombuffer(packed, "<f4").tolist() == pytest.approx([0.6, -0.8, 0])
    assert json.loads(bytes(encode_vector(bytes(12), "float"))) == [0, 0, 0]
