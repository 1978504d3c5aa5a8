"""What a Responses request continues, and what is stored of it: its input at once, its output at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from mmserve.httpserver.api.call_ids import call_id
from mmserve.httpserver.api.json_limits import max_json_nbytes
from mmserve.httpserver.api.openai.responses.events.answer import ResponsesAnswer, StoredResponse
from mmserve.httpserver.api.openai.responses.events.background import BackgroundAnswer
from mmserve.httpserver.api.openai.responses.events.fold import ID_PREFIX
from mmserve.httpserver.api.openai.responses.events.follow import Follower
from mmserve.httpserver.api.openai.responses.events.objects import ResponseObject
from mmserve.httpserver.api.openai.responses.request.fields import ResponsesRequest
from mmserve.httpserver.api.openai.responses.request.items import ItemsReader, as_items
from mmserve.httpserver.api.openai.responses.request.references import references_in, stored_items
from mmserve.httpserver.api.protocol import ParsedRequest
from mmserve.httpserver.call import GenerateCall, kept_nbytes
from mmserve.httpserver.conversation import Conversation
from mmserve.httpserver.media.split_media import SplitUrl, put_back
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.response_store.database import CONTINUED, StoredItem
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest, PreviousResponseNotFound, Unavailable, quoted

_READ_COPIES = 3
"""Memory of stored items while they are read, as a multiple of their JSON: it, the decoded items, the texts."""
_FIELD = "previous_response_id"
_RETRY_AFTER_S = 5.0


@dataclass(frozen=True)
class ParsedResponses(ParsedRequest):
    """``request``: with marks in the place of ``split_urls``. ``before``: the items of the responses before it."""

    request: ResponsesRequest = field(kw_only=True)
    split_urls: Mapping[str, SplitUrl] = field(kw_only=True)
    model: ServedModel = field(kw_only=True)
    before: Sequence[bytes] = ()


async def complete(
    parsed: ParsedRequest, responses: ResponseStore, owner: str, resources: RequestResources
) -> ParsedRequest:
    """See ``protocol.Complete``. Raises PreviousResponseNotFound, ContextLengthExceeded and Unavailable."""
    parsed = await with_history(parsed, responses, owner, resources)
    assert isinstance(parsed.send_answer, ResponsesAnswer)
    request, call = parsed.request, parsed.call
    response = parsed.send_answer.response
    if call.relayed is not None:
        response = msgspec.structs.replace(response, id=f"{ID_PREFIX}{call.answer_id}", created_at=call.created_s)
    if request.background:
        return await _in_background(parsed, response, responses, owner, resources)
    stored = None
    if request.store is not False:
        items, attempt, previous = InputItems(parsed), call.request_id, request.previous_response_id
        if await responses.begin(owner, response.id, attempt, previous, items.stored, items.text_nbytes):
            stored = StoredResponse(responses, response.id, attempt)
    answer = ResponsesAnswer(msgspec.structs.replace(response, store=stored is not None), stored)
    return ParsedRequest(parsed.call, answer, drop=None if stored is None else stored.end)


async def _in_background(
    parsed: ParsedResponses,
    response: ResponseObject,
    responses: ResponseStore,
    owner: str,
    resources: RequestResources,
) -> ParsedRequest:
    """Stores the response as it is while it is queued. Raises InvalidRequest and Unavailable."""
    if not responses.is_enabled:
        raise InvalidRequest("this server stores no responses (--responses-store-mb)", param="background")
    response = msgspec.structs.replace(response, store=True)
    items, attempt, previous = InputItems(parsed), parsed.call.request_id, parsed.request.previous_response_id
    body = msgspec.json.encode(response)
    if not await responses.begin_run(owner, response.id, attempt, previous, items.stored, items.text_nbytes, body):
        raise Unavailable("the response cannot be stored (--responses-store-mb)", retry_after_s=_RETRY_AFTER_S)
    follower = None
    if parsed.request.stream:
        follower = Follower(responses, owner, response.id, resources.answer_memory())
    answer = BackgroundAnswer(response, responses, follower)
    return ParsedRequest(
        parsed.call, parsed.send_answer, partial(responses.forget, response.id, attempt), answer.respond
    )


async def with_history(
    parsed: ParsedRequest, responses: ResponseStore, owner: str, resources: RequestResources
) -> ParsedResponses:
    """With the messages and images of the responses before it and of the items that it refers to, if there are any.
    Raises what ``complete`` raises."""
    assert isinstance(parsed, ParsedResponses)
    request, held_nbytes = parsed.request, kept_nbytes(parsed.call)
    references = references_in(request.input)
    if request.previous_response_id is None and not references:
        return parsed
    if references:
        held_nbytes += _READ_COPIES * sum(await responses.item_sizes(owner, list(references.values())))
        resources.hold(held_nbytes)
        found = await stored_items(references, responses, owner, parsed.model.max_model_len)
        own = [found.get(place, item) for place, item in enumerate(request.input)]
        parsed = replace(parsed, request=msgspec.structs.replace(request, input=own))
    items: Sequence[bytes] = ()
    if (previous := request.previous_response_id) is not None:
        items = await _items_before(previous, parsed.model, responses, owner, held_nbytes, resources)
    return replace(parsed, call=await asyncio.to_thread(_joined, parsed, items), before=items)


async def _items_before(
    previous: str,
    model: ServedModel,
    responses: ResponseStore,
    owner: str,
    held_nbytes: int,
    resources: RequestResources,
) -> Sequence[bytes]:
    """The items of a stored response and of those before it. ``held_nbytes``: what the request holds already."""
    size = await responses.chain_size(owner, previous, model.max_model_len)
    if size is None:
        raise PreviousResponseNotFound(f"no response {quoted(previous)} is stored", param=_FIELD)
    if size.status not in CONTINUED:
        raise InvalidRequest(f"a response that is {size.status} cannot be continued", param=_FIELD)
    if size.text_nbytes > max_json_nbytes(model.max_model_len):
        raise ContextLengthExceeded(
            f"the responses before this one do not fit the context of {model.max_model_len} tokens", param=_FIELD
        )
    resources.hold(held_nbytes + _READ_COPIES * size.nbytes)
    return await responses.chain_items(owner, previous, model.max_model_len)


def _joined(parsed: ParsedResponses, items: Sequence[bytes]) -> GenerateCall:
    model, call, own = parsed.model, parsed.call, as_items(parsed.request.input)
    (prompt,) = call.prompts
    assert isinstance(prompt, Conversation)
    reader = ItemsReader(model.max_images, parsed.split_urls, model.max_model_len, len(items))
    messages = reader.read([*map(msgspec.json.decode, items), *own])
    instructions = prompt.messages[:1] if parsed.request.instructions else ()
    prompt = replace(prompt, messages=(*instructions, *messages))
    return msgspec.structs.replace(call, prompts=(prompt,), media=tuple(reader.media))


class InputItems:
    """The input of a request as it is stored: with an id for each item, and texts as parts."""

    def __init__(self, parsed: ParsedResponses) -> None:
        items = as_items(parsed.request.input)
        self._urls = parsed.split_urls
        ids = [_id_of(item, parsed.call.answer_id, number) for number, item in enumerate(items)]
        self._items = [
            StoredItem(id, msgspec.json.encode(_stored_form(item, id))) for item, id in zip(items, ids, strict=True)
        ]
        self.text_nbytes = sum(len(item.json) for item in self._items)

    def stored(self) -> list[StoredItem]:
        """With the images. Copies them, so it runs in a thread."""
        if not self._urls:
            return self._items
        return [StoredItem(item.id, put_back(item.json, self._urls)) for item in self._items]


def _id_of(item: dict[str, Any], request_id: str, number: int) -> str:
    given = item.get("id")
    return given if isinstance(given, str) and given else call_id("item", request_id, 0, number)


def _stored_form(item: dict[str, Any], id: str) -> dict[str, Any]:
    """The item with its type and id. Clients read the content of a message as a list."""
    form = {"type": "message"} | {key: value for key, value in item.items() if value is not None} | {"id": id}
    if form["type"] == "message" and isinstance(content := item["content"], str):
        part = "output_text" if item["role"] == "assistant" else "input_text"
        extra: dict[str, Any] = {"annotations": []} if part == "output_text" else {}
        form["content"] = [{"type": part, "text": content, **extra}]
    if form["type"] == "message":
        form["status"] = form.get("status", "completed")
    return form
