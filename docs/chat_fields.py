"""``python -m docs.chat_fields`` prints docs/chat_fields.md, made from the fields themselves (``make docs``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import inspect

from mmserve.httpserver.api.openai.fields import ChatRequest

_HEAD = """\
# Fields of a chat completion

Made by `make docs` from `mmserve/httpserver/api/openai/fields.py`; do not edit.

null means that a field is left out. A field that is not here, or a value out of range, is a 400 that names it. Those
marked C mean the same for [`POST /v1/completions`](completion_fields.md).

| field | values | meaning |
|---|---|---|
"""
COMPLETIONS_TOO = frozenset("model stream stream_options n stop timeout".split())
"""Besides those that both inherit."""
_ACCOUNT = "for the account of a hosted service: changes nothing"
_REASONING = "the template's switch for reasoning; 400 if it has none, unless `none`"
MEANINGS = {
    "user": _ACCOUNT,
    "safety_identifier": _ACCOUNT,
    "metadata": _ACCOUNT,
    "service_tier": _ACCOUNT,
    "prompt_cache_key": _ACCOUNT,
    "prompt_cache_retention": _ACCOUNT,
    "prompt_cache_options": _ACCOUNT,
    "min_tokens": "until then no stop token is sampled and no stop string looked for; no effect with a grammar",
    "temperature": "0: always the most likely token. Default: the checkpoint's, or 1",
    "top_p": "default: the checkpoint's, or 1",
    "top_k": "0 and -1: off. Default: the checkpoint's, or off",
    "min_p": "default: the checkpoint's, or 0",
    "presence_penalty": "for tokens that the answer has",
    "frequency_penalty": "for each time that the answer has the token",
    "repetition_penalty": "for tokens that prompt or answer have. Default: the checkpoint's, or 1",
    "logit_bias": "token id to bias, at most 4096. A token that a grammar bans stays banned",
    "seed": "the same request with the same seed gets the same answer; taken modulo 2^63",
    "ignore_eos": "the model's own stop tokens do not end the answer; no effect with a grammar",
    "stop_token_ids": "tokens that end the answer; `stop_reason` of the choice names the one that did",
    "allowed_token_ids": "only these tokens are sampled",
    "response_format": "[structured output](structured_output.md)",
    "structured_outputs": "[structured output](structured_output.md)",
    "guided_json": "older name of `structured_outputs.json`",
    "guided_regex": "older name of `structured_outputs.regex`",
    "guided_choice": "older name of `structured_outputs.choice`",
    "guided_grammar": "older name of `structured_outputs.grammar`",
    "guided_whitespace_pattern": "older name of `structured_outputs.whitespace_pattern`",
    "guided_decoding_backend": "`auto`, `guidance` or `llguidance`, which all mean the same; others: 400",
    "bad_words": "texts that the answer does not contain: the tokens that spell each one, with and without a space "
    "before it, at most 64 a word and 4096 in all. Other tokens that spell the same text are not banned",
    "priority": "of waiting requests those with a lower number start first",
    "skip_special_tokens": "false: special tokens are part of the text",
    "include_stop_str_in_output": "the text ends with the stop string, or with the text of the stop token",
    "request_id": "the answer's `id` ends with it; need not be unique",
    "messages": "roles system, developer, user, assistant, tool, function; content a text or parts (`text`, "
    "`image_url`). `uuid` of a picture: see [pictures by name](clients.md#pictures-by-name). `detail` changes nothing",
    "model": "a name of the served model; none: 400, others: 404",
    "stream": "server-sent events",
    "stream_options": "`include_usage`: a last chunk with the usage; `continuous_usage_stats`: usage in every chunk; "
    "`include_timing`: a last chunk with [where the time went](clients.md#where-the-time-went); "
    "`include_obfuscation`: changes nothing",
    "n": "choices; each has a seed of its own",
    "max_tokens": "older name of `max_completion_tokens`",
    "max_completion_tokens": "default: the checkpoint's `max_new_tokens`, or what the context leaves",
    "stop": "the answer ends before the first of these; `stop_reason` of the choice names it",
    "cache_salt": "requests with different salts share neither cached prompts nor cached images",
    "timeout": "seconds from the request's arrival after which it ends with an error (504)",
    "logprobs": "the model's own log-probabilities of the answer's tokens",
    "top_logprobs": "alternatives for each token, with `logprobs`",
    "return_token_ids": "`prompt_token_ids` (a placeholder for each token of an image) and, in each choice or chunk, "
    "`token_ids`",
    "return_tokens_as_token_ids": "`logprobs` name tokens as `token_id:N`",
    "prompt_logprobs": "vLLM's `prompt_logprobs` of a whole answer: an object for each token of the prompt, null for "
    "the first and for those of images. `rank` is null if the token is not among the top ones. With `stream`: 400",
    "tools": "functions; see [tool calls](tool_calls.md). 400 if the chat template takes none",
    "tool_choice": "`none`, `auto`, `required`, a named function, `allowed_tools`",
    "parallel_tool_calls": "false: the answer ends with its first call",
    "functions": "older form of `tools`",
    "function_call": "older form of `tool_choice`",
    "reasoning_effort": _REASONING,
    "include_reasoning": "false: thoughts are not sent",
    "chat_template_kwargs": "variables of the chat template; 400 for one that it does not read",
    "add_generation_prompt": "false: the prompt does not begin an answer",
    "continue_final_message": "the answer goes on with the last message, which is the assistant's",
    "store": "true: 400",
    "modalities": "other than `text`: 400",
    "audio": "400",
    "verbosity": "other than `medium`: 400",
    "prediction": "400",
    "mm_processor_kwargs": "settings of the image processor for this request's pictures, within the server's: see "
    "[pictures](models.md#settings-of-a-request)",
}


def page() -> str:
    """The whole page."""
    shared = {
        field.name for base in ChatRequest.__mro__[1:] if issubclass(base, msgspec.Struct) for field in _fields(base)
    }
    return _HEAD + rows(ChatRequest, MEANINGS, dict.fromkeys(shared | COMPLETIONS_TOO, " C"))


def rows(struct: type[msgspec.Struct], meanings: Mapping[str, str], marks: Mapping[str, str]) -> str:
    """A row of the table for each field of ``struct``. ``marks``: what stands behind some fields' names."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return "".join(
        f"| `{field.name}`{marks.get(field.name, '')} | {_allowed(field.type)} | {meanings[field.name]} |\n"
        for field in sorted(info.fields, key=lambda field: field.name)
    )


def _fields(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return () if struct is msgspec.Struct else msgspec.structs.fields(struct)


def _allowed(info: inspect.Type) -> str:
    """The values of a field in words."""
    match info:
        case inspect.UnionType():
            return " or ".join(_allowed(one) for one in info.types if not isinstance(one, inspect.NoneType))
        case inspect.IntType() | inspect.FloatType():
            return _number("integer" if isinstance(info, inspect.IntType) else "number", info)
        case inspect.StrType():
            return f"text of at most {info.max_length} characters" if info.max_length else "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in info.values)
        case inspect.ListType():
            return f"list of {_allowed(info.item_type)}" + (f", at most {info.max_length}" if info.max_length else "")
        case inspect.AnyType():
            return ""
        case _:
            return "object"


def _number(kind: str, info: inspect.IntType | inspect.FloatType) -> str:
    low = f"{info.ge}" if info.ge is not None else f"above {info.gt}" if info.gt is not None else ""
    if low and info.le is not None:
        return f"{kind}, {low} to {info.le}"
    return f"{kind}, {low} or more" if low else kind


if __name__ == "__main__":
    print(page(), end="")
