"""``/v1/responses/compact``: a conversation in fewer tokens. The model writes a summary of it, which the client sends
in place of the conversation, after the user's own messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.types import Send

from mmserve.httpserver.api.call_ids import call_id
from mmserve.httpserver.api.openai.fields import (
    MAX_ID_CHARS,
    MAX_MODEL_NAME_CHARS,
    MAX_TIMEOUT_S,
    Bookkeeping,
    decode,
)
from mmserve.httpserver.api.openai.responses.events.fold import ID_PREFIX
from mmserve.httpserver.api.openai.responses.events.objects import ResponseUsage
from mmserve.httpserver.api.openai.responses.history import InputItems, with_history
from mmserve.httpserver.api.openai.responses.parse import read_request
from mmserve.httpserver.api.openai.responses.request.fields import ResponsesRequest
from mmserve.httpserver.api.openai.responses.request.items import as_items
from mmserve.httpserver.api.openai.responses.sealed import sealed
from mmserve.httpserver.api.protocol import ParsedRequest, Protocol
from mmserve.httpserver.api.response import send_json
from mmserve.httpserver.media.split_media import SplitUrl
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest

_ASK = (
    "Summarise this conversation for an assistant that will continue it and sees only your summary: the user's wishes, "
    "facts, decisions, results of tools, and what is still to be done. Write the summary and nothing else."
)
_KEPT_COPIES = 3
"""Of the user's messages: as they were read, in the answer, and its JSON."""


class CompactRequest(Bookkeeping, frozen=True, kw_only=True):
    """Body of ``POST /v1/responses/compact``. ItemsReader reads ``input``."""

    input: Any = None
    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=MAX_ID_CHARS)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None


class CompactionItem(msgspec.Struct, tag_field="type", tag="compaction"):
    """The summary, as ``sealed`` writes it."""

    id: str
    encrypted_content: str


class Compaction(msgspec.Struct):
    """``output``: the user's messages, and a CompactionItem as the last one."""

    id: str
    created_at: int
    output: list[msgspec.Raw]
    usage: ResponseUsage
    object: str = "response.compaction"


class _Kind(msgspec.Struct):
    type: Any = "message"
    role: Any = ""


@dataclass(frozen=True)
class CompactAnswer:
    """Sends the compaction. ``messages``: JSON of the user's."""

    messages: tuple[bytes, ...] = ()

    async def __call__(self, task: RequestTask, send: Send) -> None:
        """Raises MmserveError only if nothing has been sent."""
        texts = [delta.text async for delta in task.deltas]
        id = task.call.request_id
        summary = CompactionItem(call_id("cmp", id, 0, 0), sealed("".join(texts).strip()))
        output = [msgspec.Raw(item) for item in (*self.messages, msgspec.json.encode(summary))]
        usage = ResponseUsage.of(task.deltas.usage)
        await send_json(send, msgspec.json.encode(Compaction(f"{ID_PREFIX}{id}", int(time.time()), output, usage)))


def parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedRequest:
    """See ``protocol.Parse``. The conversation, with the request for a summary of it as the last message."""
    request = decode(body, CompactRequest)
    given = as_items([] if request.input is None else request.input)
    if not isinstance(given, list):
        raise InvalidRequest("input must be a text or a list of items", param="input")
    if not given and request.previous_response_id is None:
        raise InvalidRequest("there is no conversation without input and previous_response_id", param="input")
    asked = ResponsesRequest(
        model=request.model,
        input=[*given, *as_items(_ASK)],
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        timeout=request.timeout,
        temperature=0.0,
        store=False,
    )
    return read_request(asked, split_urls, model, arrival_s)


async def complete(
    parsed: ParsedRequest, responses: ResponseStore, owner: str, resources: RequestResources
) -> ParsedRequest:
    """See ``protocol.Complete``. Raises what ``with_history`` raises."""
    full = await with_history(parsed, responses, owner, resources)
    own = await asyncio.to_thread(InputItems(full).stored)
    items = (*full.before, *(item.json for item in own[:-1]))
    messages = tuple(item for item in items if _is_of_user(item))
    call = msgspec.structs.replace(full.call, echo_nbytes=_KEPT_COPIES * sum(map(len, messages)))
    return ParsedRequest(call, CompactAnswer(messages))


def _is_of_user(item: bytes) -> bool:
    kind = msgspec.json.decode(item, type=_Kind)
    return (kind.type, kind.role) == ("message", "user")


COMPACT = Protocol(
    path="/v1/responses/compact",
    name="compact",
    description="A conversation as the user's messages and a summary of all, which can be sent in its place.",
    parse=parse,
    body_type=CompactRequest,
    answer_type=Compaction,
    complete=complete,
)
