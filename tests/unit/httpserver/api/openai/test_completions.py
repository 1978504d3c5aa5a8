"""Bodies of /v1/completions to calls: the forms of a prompt, defaults, and that every refusal names its field."""

from __future__ import annotations

import json
from array import array
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mmserve.grammar.sources import regex_grammar
from mmserve.httpserver.api.openai.completions.request import COMPLETIONS, CompletionRequest
from mmserve.httpserver.api.protocol import parse_body
from mmserve.httpserver.call import GenerateCall, kept_nbytes
from mmserve.httpserver.conversation import WrittenPrompt
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest, ModelNotFound
from tests.fakes.http.http_services import make_deployment


def read(body: dict[str, Any]) -> GenerateCall:
    model = ServedModel.of(make_deployment("/nowhere"))
    return parse_body(COMPLETIONS, json.dumps({"model": "stub", "prompt": "hi"} | body).encode(), model, 1.5).call


def prompts(value: Any, **body: Any) -> list[tuple[object, str]]:
    """Content and param of each prompt."""
    found = read({"prompt": value} | body).prompts
    assert all(isinstance(prompt, WrittenPrompt) for prompt in found)
    return [(prompt.content, prompt.param) for prompt in found]  # type: ignore[union-attr]


def test_a_prompt_has_four_forms() -> None:
    assert prompts("hi") == [("hi", "prompt")]
    assert prompts(["a", "b"]) == [("a", "prompt[0]"), ("b", "prompt[1]")]
    assert prompts([1, 2]) == [(array("q", [1, 2]), "prompt")]
    assert prompts([[1], [2, 3]]) == [(array("q", [1]), "prompt[0]"), (array("q", [2, 3]), "prompt[1]")]
    assert prompts(None) == prompts("") == [("", "prompt")]


def test_extensions_mean_what_they_mean_for_chat() -> None:
    fields = {"bad_words": ["a"], "priority": 1, "include_stop_str_in_output": True, "skip_special_tokens": False}
    call = read(fields | {"guided_regex": "b+", "request_id": "mine", "stop_token_ids": [3]})
    assert (call.bad_words, call.priority, call.client_request_id) == (("a",), 1, "mine")
    assert (call.view.include_stop, call.view.skip_special_tokens) == (True, False)
    assert (call.sampling.grammar, call.grammar_param) == (regex_grammar("b+", ""), "guided_regex")
    assert call.sampling.stop_token_ids == (3,)


def test_defaults() -> None:
    call = read({})
    assert (call.sampling.max_tokens, call.fit_output, call.prompt_only, call.echo, call.n) == (
        16,
        True,
        False,
        False,
        1,
    )
    assert (call.num_prompts, call.stream, call.sampling.logprobs, call.sampling.prompt_logprobs) == (
        1,
        False,
        None,
        None,
    )
    (prompt,) = call.prompts
    assert prompt == WrittenPrompt("hi", "prompt", add_special_tokens=True)


def test_null_means_absent() -> None:
    nothing = {
        field.name: None for field in msgspec.structs.fields(CompletionRequest) if field.name not in ("prompt", "model")
    }
    assert len(nothing) > 25
    assert replace(read(nothing | {"seed": 1}), request_id="") == replace(read({"seed": 1}), request_id="")


def test_what_lm_eval_sends() -> None:
    body = {"prompt": [[1, 2, 3]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    call = read(body | {"model": "stub"})
    assert (call.echo, call.sampling.max_tokens, call.fit_output, call.prompt_only) == (True, 1, False, False)
    assert (call.sampling.logprobs, call.sampling.prompt_logprobs) == (1, 1)


def test_scoring_without_an_answer() -> None:
    call = read({"max_tokens": 0, "echo": True, "logprobs": 0})
    assert (call.prompt_only, call.sampling.prompt_logprobs) == (True, 0)


def test_the_prompt_is_scored_only_if_it_is_echoed() -> None:
    assert read({"logprobs": 3}).sampling.prompt_logprobs is None


def test_choices_of_all_prompts_are_counted_and_capped() -> None:
    call = read({"prompt": ["a", "b", "c"], "n": 4, "best_of": 4})
    assert (call.num_prompts, call.num_choices) == (3, 12)
    assert kept_nbytes(call) - kept_nbytes(read({})) > 11 * 9 * 1024


def test_special_tokens_and_a_schema_are_the_clients_choice() -> None:
    call = read({"add_special_tokens": False, "response_format": {"type": "json_object"}, "stop": "."})
    assert call.sampling.grammar
    assert (call.stop, call.grammar_param) == ((".",), "response_format")
    assert [prompt.add_special_tokens for prompt in call.prompts if isinstance(prompt, WrittenPrompt)] == [False]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"n": 17}, "n"),
        ({"n": 16, "prompt": ["a"] * 17}, "n"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": [[1], [1.5]]}, "prompt[1][0]"),
        ({"prompt": [[1], [[2]]]}, "prompt[1][0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"stop": [""]}, "stop[0]"),
        ({"stream_options": {"usage": True}}, "stream_options.usage"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": []}, "messages"),
        ({"cache_salt": "s" * 257}, "cache_salt"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
    ],
)
def test_every_refusal_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert caught.value.param == param


def test_another_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound):
        read({"model": "gpt-4"})


def test_a_long_picture_in_the_place_of_a_prompt_is_text() -> None:
    url = "data:image/png;base64," + "A" * 17_000
    assert prompts(url) == [(url, "prompt")]
