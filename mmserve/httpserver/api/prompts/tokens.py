"""``/tokenize`` and ``/detokenize``: a prompt as the model's token ids, and token ids as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.openai.chat.messages import ConversationReader
from mmserve.httpserver.api.openai.chat.request import conversation_of
from mmserve.httpserver.api.openai.chat.tools import ToolList
from mmserve.httpserver.api.openai.fields import MAX_MODEL_NAME_CHARS, ChatRequest, ReasoningEffort, decode
from mmserve.httpserver.api.openapi import add_protocol_route
from mmserve.httpserver.api.prompts.prompt_requests import admitted
from mmserve.httpserver.api.protocol import Protocol
from mmserve.httpserver.call import GenerateCall, MediaRef, kept_nbytes, new_request_id
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.conversation import PromptInput, WrittenPrompt
from mmserve.httpserver.media.local import decode_small_images
from mmserve.httpserver.media.split_media import SplitUrl, UrlsLeft
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import InvalidRequest, quoted

_TOKEN_NBYTES = 120
"""Memory of one token: its id, its piece, and the JSON of both."""
_LONG_TOKENS = 5000
"""More are spelled or decoded in a thread: that takes milliseconds."""


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``prompt``, or ``messages`` and what else makes their prompt in chat completions."""

    prompt: str | None = None
    messages: Any = None
    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    add_special_tokens: bool | None = None
    """Of ``prompt``, true by default. The others are of ``messages``."""
    tools: ToolList | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tokens: list[int]
    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None


class ImageSize(msgspec.Struct):
    """An upright image in pixels, and its tokens in the prompt."""

    width: int
    height: int
    tokens: int


class Tokens(msgspec.Struct):
    """``tokens``: with the placeholder's id for every token of an image. ``token_strs``: as the vocabulary has them.
    ``images``: in the order of the prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None
    images: list[ImageSize]


class DetokenizedText(msgspec.Struct):
    prompt: str


@dataclass(frozen=True)
class _Tokenize:
    """``call`` only holds the prompt."""

    call: GenerateCall
    return_token_strs: bool


_OF_CHAT = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "reasoning_effort")
_OF_MESSAGES = (*_OF_CHAT, "mm_processor_kwargs")
_OF_PROMPT = ("add_special_tokens",)


def parse_tokenize(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> _Tokenize:
    """See ``protocol.Parse``."""
    request = decode(body, TokenizeRequest)
    model.check_name(request.model)
    if (request.prompt is None) == (request.messages is None):
        param = "prompt" if request.messages is None else "messages"
        raise InvalidRequest("there must be either prompt or messages", param=param)
    for field in _OF_MESSAGES if request.messages is None else _OF_PROMPT:
        if getattr(request, field) is not None:
            other = "messages" if request.messages is None else "prompt"
            raise InvalidRequest(f"{field} needs {other}", param=field)
    prompt, media = _prompt(request, split_urls, model)
    call = GenerateCall(
        request_id=new_request_id(),
        model=model.name,
        prompts=(prompt,),
        media=media,
        sampling=SamplingParams(max_tokens=0),
        arrival_s=arrival_s,
        image_options=model.image_options(request.mm_processor_kwargs),
    )
    return _Tokenize(call, bool(request.return_token_strs))


def _prompt(
    request: TokenizeRequest, split_urls: Mapping[str, SplitUrl], model: ServedModel
) -> tuple[PromptInput, tuple[MediaRef, ...]]:
    if request.prompt is not None:
        if split_urls:
            raise UrlsLeft(split_urls)
        return WrittenPrompt(request.prompt, add_special_tokens=request.add_special_tokens is not False), ()
    reader = ConversationReader(model.max_images, split_urls, model.max_model_len)
    messages = reader.read(request.messages)
    chat = ChatRequest(**{field: getattr(request, field) for field in _OF_CHAT})
    return conversation_of(chat, messages, model), tuple(reader.media)


def parse_detokenize(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> list[int]:
    """The token ids of a body. See ``protocol.Parse``."""
    if split_urls:
        raise UrlsLeft(split_urls)
    request = decode(body, DetokenizeRequest)
    model.check_name(request.model)
    for token_id in (min(request.tokens, default=0), max(request.tokens, default=0)):
        if not 0 <= token_id < model.vocab_size:
            raise InvalidRequest(f"token id {quoted(token_id)} is not in the vocabulary", param="tokens")
    return request.tokens


TOKENIZE = Protocol(
    path="/tokenize",
    name="tokenize",
    description="The token ids of the prompt that completions would make of a text, or chat completions of messages.",
    parse=parse_tokenize,
    body_type=TokenizeRequest,
    answer_type=Tokens,
)
DETOKENIZE = Protocol(
    path="/detokenize",
    name="detokenize",
    description="The text of token ids, special tokens included.",
    parse=parse_detokenize,
    body_type=DetokenizeRequest,
    answer_type=DetokenizedText,
)


def token_routes(context: WorkerContext) -> APIRouter:
    """Both routes are admitted and counted as requests for an answer are."""
    router = APIRouter()
    path, vocabulary = context.path, context.path.vocabulary

    async def tokenize(request: Request) -> Response:
        async with admitted(context, TOKENIZE, request) as (parsed, resources):
            owned = context.tenants.own(parsed.call, request.scope["state"]["key"])
            call, spell = decode_small_images(owned), parsed.return_token_strs
            del parsed, owned  # they refer to the body
            resources.hold(kept_nbytes(call))
            (ids,), read, _ = await path.token_ids(call, resources)
            images = [ImageSize(*image[:3]) for image in read]
            resources.hold(kept_nbytes(call) + _TOKEN_NBYTES * len(ids))

            def answer() -> bytes:
                spelled = [vocabulary.piece(token_id) for token_id in ids] if spell else None
                room = context.model.max_model_len
                return msgspec.json.encode(Tokens(len(ids), room, list(ids), spelled, images))

            body = await path.prompt_threads.run(answer) if len(ids) > _LONG_TOKENS else answer()
        return Response(body, media_type="application/json")

    async def detokenize(request: Request) -> Response:
        async with admitted(context, DETOKENIZE, request) as (ids, resources):
            resources.hold(_TOKEN_NBYTES * len(ids))

            def answer() -> bytes:
                return msgspec.json.encode(DetokenizedText(vocabulary.decode(ids)))

            body = await path.prompt_threads.run(answer) if len(ids) > _LONG_TOKENS else answer()
        return Response(body, media_type="application/json")

    add_protocol_route(router, TOKENIZE, tokenize, "tokens")
    add_protocol_route(router, DETOKENIZE, detokenize, "tokens")
    return router
