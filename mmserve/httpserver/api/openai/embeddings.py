"""OpenAI embeddings: vectors of texts, token ids, and conversations with pictures in them.

The vector is the final hidden state of the prompt's last token, as a generative model has no other, divided by its
length.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from starlette.types import Send

from mmserve.httpserver.api.openai.chat.messages import ConversationReader
from mmserve.httpserver.api.openai.chat.request import conversation_of
from mmserve.httpserver.api.openai.completions.written_prompts import WrittenInput, read_written_prompts
from mmserve.httpserver.api.openai.fields import (
    MAX_MODEL_NAME_CHARS,
    MAX_SALT_CHARS,
    MAX_TIMEOUT_S,
    Bookkeeping,
    ChatRequest,
    decode,
)
from mmserve.httpserver.api.protocol import ParsedRequest, Protocol
from mmserve.httpserver.api.response import send_json
from mmserve.httpserver.call import GenerateCall, MediaRef, new_request_id
from mmserve.httpserver.conversation import PromptInput
from mmserve.httpserver.media.split_media import SplitUrl, UrlsLeft
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import InvalidRequest, quoted

EncodingFormat = Literal["float", "base64"]


class EmbeddingRequest(Bookkeeping, frozen=True, kw_only=True):
    """Body of ``POST /v1/embeddings``: ``input``, or ``messages`` as in chat completions, whose vector is one."""

    input: WrittenInput | None = None
    messages: Any = None
    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    encoding_format: EncodingFormat | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    add_special_tokens: bool | None = None
    """Of ``input``."""
    add_generation_prompt: bool | None = None
    """Of ``messages``; unlike in chat completions, false by default."""
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    """These two are of ``messages``."""
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARS)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None


_OF_MESSAGES = ("add_generation_prompt", "chat_template_kwargs", "mm_processor_kwargs")
_OF_INPUT = ("add_special_tokens",)


_VECTOR = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "format": "byte"}]}


class Embedding(msgspec.Struct):
    """``embedding``: numbers, or little-endian float32 in base64."""

    index: int
    embedding: Annotated[msgspec.Raw, Meta(extra_json_schema=_VECTOR)]
    object: str = "embedding"


class PromptUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    data: list[Embedding]
    model: str
    usage: PromptUsage
    object: str = "list"


def parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedRequest:
    """See ``protocol.Parse``."""
    request = decode(body, EmbeddingRequest)
    model.check_name(request.model)
    if request.dimensions not in (None, model.hidden_size):
        raise InvalidRequest(
            f"the model's vectors have {model.hidden_size} dimensions, not {quoted(request.dimensions)}: it was not "
            "trained to be cut",
            param="dimensions",
        )
    prompts, media = _prompts(request, split_urls, model)
    call = GenerateCall(
        request_id=new_request_id(),
        model=model.name,
        prompts=prompts,
        num_prompts=len(prompts),
        media=media,
        sampling=SamplingParams(max_tokens=0),
        arrival_s=arrival_s,
        prompt_only=True,
        pooling=True,
        timeout_s=request.timeout,
        cache_salt=request.cache_salt or "",
        image_options=model.image_options(request.mm_processor_kwargs),
    )
    return ParsedRequest(call, EmbeddingAnswer(request.encoding_format or "float"))


def _prompts(
    request: EmbeddingRequest, split_urls: Mapping[str, SplitUrl], model: ServedModel
) -> tuple[tuple[PromptInput, ...], tuple[MediaRef, ...]]:
    if (request.input is None) == (request.messages is None):
        param = "input" if request.messages is None else "messages"
        raise InvalidRequest("there must be either input or messages", param=param)
    for field in _OF_MESSAGES if request.messages is None else _OF_INPUT:
        if getattr(request, field) is not None:
            other = "messages" if request.messages is None else "input"
            raise InvalidRequest(f"{field} needs {other}", param=field)
    if request.messages is None:
        if split_urls:
            raise UrlsLeft(split_urls)
        return read_written_prompts(
            request.input, "input", add_special_tokens=request.add_special_tokens is not False
        ), ()
    reader = ConversationReader(model.max_images, split_urls, model.max_model_len)
    messages = reader.read(request.messages)
    chat = ChatRequest(
        add_generation_prompt=bool(request.add_generation_prompt), chat_template_kwargs=request.chat_template_kwargs
    )
    return (conversation_of(chat, messages, model),), tuple(reader.media)


@dataclass(frozen=True)
class EmbeddingAnswer:
    """Sends the vectors in the order of their prompts."""

    encoding_format: EncodingFormat

    async def __call__(self, task: RequestTask, send: Send) -> None:
        """Raises MmserveError only if nothing has been sent."""
        call, found = task.call, dict[int, msgspec.Raw]()
        async for delta in task.deltas:
            if delta.finish is not None:
                found[delta.index] = encoded = encode_vector(delta.embedding, self.encoding_format)
                task.deltas.hold(2 * len(memoryview(encoded)))  # the response's JSON is as long again
        num_tokens = task.deltas.usage.prompt_tokens
        vectors = [Embedding(index, found[index]) for index in range(call.num_choices)]
        answer = EmbeddingList(vectors, call.model, PromptUsage(num_tokens, num_tokens))
        await send_json(send, msgspec.json.encode(answer))


def encode_vector(hidden: bytes, encoding_format: EncodingFormat) -> msgspec.Raw:
    """JSON of the normalised vector: numbers, or little-endian float32 in base64. ``hidden``: float32 [hidden]."""
    vector = np.frombuffer(hidden, "<f4").astype(np.float64)
    length = float(np.linalg.norm(vector))
    vector32 = (vector / (length or 1.0)).astype("<f4")
    values: Any = vector32.tolist() if encoding_format == "float" else base64.b64encode(vector32.tobytes()).decode()
    return msgspec.Raw(msgspec.json.encode(values))


EMBEDDINGS = Protocol(
    path="/v1/embeddings",
    name="embeddings",
    description="Vectors of texts, of lists of token ids, or of a conversation with pictures in it or not.",
    parse=parse,
    body_type=EmbeddingRequest,
    answer_type=EmbeddingList,
)
