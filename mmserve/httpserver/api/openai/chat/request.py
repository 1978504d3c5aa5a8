"""OpenAI chat completions: parses a body into a GenerateCall. ``chat_answer`` sends the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mmserve.httpserver.api.openai.chat.answer import ChatAnswer
from mmserve.httpserver.api.openai.chat.messages import ConversationReader
from mmserve.httpserver.api.openai.chat.objects import Completion
from mmserve.httpserver.api.openai.chat.tools import read_tool_choice, read_tools
from mmserve.httpserver.api.openai.extensions import extended
from mmserve.httpserver.api.openai.fields import ChatRequest, ChatStreamOptions, decode, refuse_unsupported
from mmserve.httpserver.api.openai.sampling import requested_logprobs, sampling_params
from mmserve.httpserver.api.protocol import ParsedRequest, Protocol
from mmserve.httpserver.call import GenerateCall, new_request_id
from mmserve.httpserver.conversation import Conversation, Message, Tool
from mmserve.httpserver.media.split_media import SplitUrl
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest

MAX_TEMPLATE_KWARGS_NBYTES = 16 * 1024


def parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedRequest:
    """See ``protocol.Parse``."""
    request = decode(body, ChatRequest)
    model.check_given_name(request.model)
    refuse_unsupported(request)
    reader = ConversationReader(model.max_images, split_urls, model.max_model_len)
    messages = reader.read(request.messages)
    options = request.stream_options or ChatStreamOptions()
    if options.include_timing and not request.stream:
        raise InvalidRequest("include_timing needs stream", param="stream_options.include_timing")
    max_tokens = request.max_completion_tokens or request.max_tokens
    sampling = sampling_params(
        request,
        model,
        max_tokens=max_tokens or model.sampling_defaults.max_tokens,
        logprobs=requested_logprobs(request),
    )
    call = GenerateCall(
        request_id=new_request_id(),
        model=model.name,
        prompts=(conversation_of(request, messages, model),),
        media=tuple(reader.media),
        sampling=msgspec.structs.replace(sampling, prompt_logprobs=request.prompt_logprobs),
        arrival_s=arrival_s,
        n=request.n or 1,
        image_options=model.image_options(request.mm_processor_kwargs),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        stream=bool(request.stream),
        timeout_s=request.timeout,
        fit_output=max_tokens is None,
        timed=bool(options.include_timing),
    )
    answer = ChatAnswer(
        include_usage=bool(options.include_usage),
        usage_in_every_chunk=bool(options.continuous_usage_stats),
        include_reasoning=request.include_reasoning is not False,
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        image_token_id=model.image_token_id,
    )
    return ParsedRequest(extended(call, request, model), answer)


def conversation_of(request: ChatRequest, messages: tuple[Message, ...], model: ServedModel) -> Conversation:
    """``messages`` with the tools and the template's variables of the request. Raises InvalidRequest."""
    tools = _tools(request, model)
    choice, choice_param = _tool_choice(request)
    continues = bool(request.continue_final_message)
    if continues and messages[-1].role != "assistant":
        raise InvalidRequest("the last message is not the assistant's", param="continue_final_message")
    if continues and request.add_generation_prompt:
        raise InvalidRequest("a message that is continued has no generation prompt", param="add_generation_prompt")
    return Conversation(
        messages,
        tools,
        read_tool_choice(choice, tools, choice_param),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        template_kwargs=_template_kwargs(request, model),
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=continues,
    )


def _tools(request: ChatRequest, model: ServedModel) -> tuple[Tool, ...]:
    if request.tools and request.functions:
        raise InvalidRequest("functions is the older name of tools: use one of them", param="functions")
    if request.functions:
        tools, param = read_tools(request.functions, "functions"), "functions"
    else:
        tools, param = read_tools((tool.function for tool in request.tools or ()), "tools"), "tools"
    if tools and not model.takes_tools:
        raise InvalidRequest("the model's chat template takes no tools", param=param)
    return tools


def _tool_choice(request: ChatRequest) -> tuple[Any, str]:
    """The choice among the tools and its field. ``function_call`` is the older form of ``tool_choice``."""
    choice = request.function_call
    if choice is None:
        return request.tool_choice, "tool_choice"
    if request.tool_choice is not None:
        raise InvalidRequest("function_call is the older name of tool_choice: use one of them", param="function_call")
    return {"type": "function", "function": choice} if isinstance(choice, dict) else choice, "function_call"


def _template_kwargs(request: ChatRequest, model: ServedModel) -> str:
    """The template's further variables as JSON. Only those that it reads are accepted."""
    kwargs = request.chat_template_kwargs or {}
    for name in kwargs:
        model.check_template_variable(name, "chat_template_kwargs")
    effort = request.reasoning_effort
    if effort is not None:
        kwargs = {**model.reasoning_variables(effort), **kwargs}
    encoded = msgspec.json.encode(kwargs)
    if len(encoded) > MAX_TEMPLATE_KWARGS_NBYTES:
        raise InvalidRequest(
            f"the variables of the template have more than {MAX_TEMPLATE_KWARGS_NBYTES} bytes",
            param="chat_template_kwargs",
        )
    return encoded.decode()


CHAT = Protocol(
    path="/v1/chat/completions",
    name="chat_completions",
    description="Answer a conversation, with pictures in it or not; streamed as server-sent events on request.",
    parse=parse,
    body_type=ChatRequest,
    answer_type=Completion,
    streams=True,
)
