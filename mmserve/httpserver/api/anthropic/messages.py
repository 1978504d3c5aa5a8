"""Anthropic's ``/v1/messages``: parses a body into a GenerateCall. ``answer`` sends the answer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mmserve.httpserver.api.anthropic.answer import AnswerMessage, MessageAnswer
from mmserve.httpserver.api.anthropic.blocks import BlockReader
from mmserve.httpserver.api.anthropic.conversation import read_messages
from mmserve.httpserver.api.anthropic.fields import MessagesRequest, decode_request, output_grammar, template_kwargs
from mmserve.httpserver.api.anthropic.tools import read_tool_choice, read_tools
from mmserve.httpserver.api.openai.fields import SamplingFields
from mmserve.httpserver.api.openai.sampling import sampling_params
from mmserve.httpserver.api.protocol import ParsedRequest, Protocol
from mmserve.httpserver.call import GenerateCall, new_request_id
from mmserve.httpserver.conversation import Conversation
from mmserve.httpserver.grammars import constrained
from mmserve.httpserver.media.split_media import SplitUrl
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest


class TokenCount(msgspec.Struct):
    """The answer of ``/v1/messages/count_tokens``."""

    input_tokens: int


def parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedRequest:
    """See ``protocol.Parse``."""
    return _parsed(decode_request(body, ("model", "max_tokens", "messages")), split_urls, model, arrival_s)


def parse_for_count(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedRequest:
    """A body whose prompt is only counted: it needs no ``max_tokens``."""
    return _parsed(decode_request(body, ("model", "messages")), split_urls, model, arrival_s)


def _parsed(
    request: MessagesRequest, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedRequest:
    model.check_name(request.model)
    reader = BlockReader(model.max_images, split_urls, model.max_model_len)
    conversation = _conversation(request, reader, model)
    fields = SamplingFields(
        temperature=request.temperature, top_p=request.top_p, top_k=request.top_k, seed=request.seed
    )
    grammar, grammar_param = output_grammar(request.output_config)
    sampling = sampling_params(fields, model, max_tokens=request.max_tokens or 0, logprobs=None)
    call = GenerateCall(
        request_id=new_request_id(),
        model=model.name,
        prompts=(conversation,),
        media=tuple(reader.media),
        sampling=constrained(sampling, grammar, model.eos_token_ids, grammar_param),
        grammar_param=grammar_param,
        arrival_s=arrival_s,
        stop=tuple(request.stop_sequences or ()),
        stream=bool(request.stream),
        timeout_s=request.timeout,
        cache_salt=request.cache_salt or "",
        image_options=model.image_options(request.mm_processor_kwargs),
        fit_output=True,
    )
    thinking = request.thinking
    answer = MessageAnswer(
        shows_thinking=thinking is None or thinking.display != "omitted",
        names_applied_edits=request.context_management is not None,
    )
    return ParsedRequest(call, answer)


def _conversation(request: MessagesRequest, reader: BlockReader, model: ServedModel) -> Conversation:
    tools = read_tools(request.tools)
    if tools and not model.takes_tools:
        raise InvalidRequest("the model's chat template takes no tools", param="tools")
    choice, parallel = read_tool_choice(request.tool_choice, tools)
    kwargs = template_kwargs(request)
    messages = read_messages(request.system, request.messages, reader, model.max_model_len)
    return Conversation(
        messages,
        tools,
        choice,
        parallel_tool_calls=parallel,
        template_kwargs=msgspec.json.encode(
            {name: value for name, value in kwargs.items() if name in model.template_variables}
        ).decode(),
        continue_final_message=messages[-1].role == "assistant",
    )


MESSAGES = Protocol(
    path="/v1/messages",
    name="messages",
    description="Answer a conversation in Anthropic's protocol; streamed as server-sent events on request.",
    parse=parse,
    body_type=MessagesRequest,
    answer_type=AnswerMessage,
    streams=True,
)
COUNT_TOKENS = Protocol(
    path="/v1/messages/count_tokens",
    name="count_tokens",
    description="The number of tokens of the prompt that ``/v1/messages`` would make of the same body.",
    parse=parse_for_count,
    body_type=MessagesRequest,
    answer_type=TokenCount,
)
