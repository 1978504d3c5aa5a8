"""OpenAI Responses: parses a body into a GenerateCall. ``answer`` sends the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from mmserve.httpserver.api.openai.fields import decode
from mmserve.httpserver.api.openai.responses.events.answer import ResponsesAnswer
from mmserve.httpserver.api.openai.responses.events.fold import ENCRYPTED_THOUGHTS, ID_PREFIX
from mmserve.httpserver.api.openai.responses.events.objects import InputTokens, ReasoningEcho, ResponseObject, TextEcho
from mmserve.httpserver.api.openai.responses.history import ParsedResponses, complete
from mmserve.httpserver.api.openai.responses.request.fields import (
    ReasoningFields,
    ResponsesRequest,
    TextFields,
    check_request,
    requested_logprobs,
)
from mmserve.httpserver.api.openai.responses.request.items import ItemsReader
from mmserve.httpserver.api.openai.responses.request.references import references_in
from mmserve.httpserver.api.openai.responses.request.text_format import format_grammar
from mmserve.httpserver.api.openai.responses.request.tools import FunctionTool, read_tool_choice, read_tools
from mmserve.httpserver.api.openai.sampling import sampling_params
from mmserve.httpserver.api.protocol import ParsedRequest, Protocol
from mmserve.httpserver.call import GenerateCall, new_request_id
from mmserve.httpserver.conversation import Conversation, Message, TextPart, Tool
from mmserve.httpserver.grammars import constrained
from mmserve.httpserver.media.split_media import SplitUrl
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest

_ECHO_OBJECTS = 2
"""Memory of the objects of a response that repeat the request, as a multiple of their JSON."""


def parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedRequest:
    """See ``protocol.Parse``."""
    return read_request(decode(body, ResponsesRequest), split_urls, model, arrival_s)


def read_request(
    request: ResponsesRequest, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedResponses:
    """The call of a request. Raises MmserveError naming the field."""
    model.check_given_name(request.model)
    check_request(request)
    fields, tools = read_tools(request.tools)
    grammar, grammar_param = format_grammar(request.text.format if request.text else None)
    knows_all = request.previous_response_id is None and not references_in(request.input)
    previous = 0 if knows_all else -1
    reader = ItemsReader(model.max_images, split_urls, model.max_model_len, previous)
    sampling = sampling_params(
        request,
        model,
        max_tokens=request.max_output_tokens or model.sampling_defaults.max_tokens,
        logprobs=requested_logprobs(request),
    )
    call = GenerateCall(
        request_id=new_request_id(),
        model=model.name,
        prompts=(_conversation(request, reader.read(request.input), tools, model),),
        media=tuple(reader.media),
        sampling=constrained(sampling, grammar, model.eos_token_ids, grammar_param),
        grammar_param=grammar_param,
        arrival_s=arrival_s,
        stream=bool(request.stream),
        timeout_s=request.timeout,
        fit_output=request.max_output_tokens is None,
        cache_salt=request.cache_salt or "",
        image_options=model.image_options(request.mm_processor_kwargs),
    )
    response = _response(request, call, fields)
    call = msgspec.structs.replace(call, echo_nbytes=_ECHO_OBJECTS * len(msgspec.json.encode(response)))
    return ParsedResponses(call, ResponsesAnswer(response), request=request, split_urls=split_urls, model=model)


def _conversation(
    request: ResponsesRequest, messages: tuple[Message, ...], tools: tuple[Tool, ...], model: ServedModel
) -> Conversation:
    if tools and not model.takes_tools:
        raise InvalidRequest("the model's chat template takes no tools", param="tools")
    return Conversation(
        (*_instructions(request), *messages),
        tools,
        read_tool_choice(request.tool_choice, tools),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        template_kwargs=_template_kwargs(request, model),
    )


def _instructions(request: ResponsesRequest) -> tuple[Message, ...]:
    """The first system message of this request. It does not stand in those that follow it."""
    return (Message("system", (TextPart(request.instructions),)),) if request.instructions else ()


def _template_kwargs(request: ResponsesRequest, model: ServedModel) -> str:
    if request.reasoning is None or request.reasoning.effort is None:
        return "{}"
    return msgspec.json.encode(model.reasoning_variables(request.reasoning.effort, "reasoning.effort")).decode()


def _response(request: ResponsesRequest, call: GenerateCall, tools: list[FunctionTool]) -> ResponseObject:
    """The response before it has any output: what it repeats of the request, with what was decided for it."""
    sampling, reasoning = call.sampling, request.reasoning or ReasoningFields()
    return ResponseObject(
        id=f"{ID_PREFIX}{call.request_id}",
        created_at=int(time.time()),
        model=call.model,
        status="queued" if request.background else "in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=ReasoningEcho(reasoning.effort, reasoning.summary),
        safety_identifier=request.safety_identifier,
        temperature=sampling.temperature,
        text=TextEcho(_format_echo(request.text)),
        tool_choice="auto" if request.tool_choice is None else request.tool_choice,
        tools=tools,
        top_logprobs=request.top_logprobs or 0,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        user=request.user,
        metadata=request.metadata or {},
        include=[ENCRYPTED_THOUGHTS] if ENCRYPTED_THOUGHTS in (request.include or ()) else UNSET,
    )


def _format_echo(text: TextFields | None) -> dict[str, Any]:
    """The format with the keys that a schema must have. Clients refuse one without."""
    given: dict[str, Any] = {"type": "text"} if text is None or text.format is None else text.format
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    return {
        "type": "json_schema",
        "name": given.get("name") or "",
        "description": given.get("description"),
        "schema": given["schema"],
        "strict": bool(given.get("strict")),
    }


RESPONSES = Protocol(
    path="/v1/responses",
    name="responses",
    description="Answer input items by output items; streamed as numbered server-sent events on request.",
    parse=parse,
    body_type=ResponsesRequest,
    answer_type=ResponseObject,
    streams=True,
    complete=complete,
)
INPUT_TOKENS = Protocol(
    path="/v1/responses/input_tokens",
    name="input_tokens",
    description="The number of tokens of the prompt that ``/v1/responses`` would make of the same body.",
    parse=parse,
    body_type=ResponsesRequest,
    answer_type=InputTokens,
)
