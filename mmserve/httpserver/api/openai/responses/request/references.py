"""Input items that are references to stored ones: finds what they stand for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from mmserve.httpserver.api.json_limits import max_json_nbytes
from mmserve.httpserver.api.openai.responses.request.items import REFERENCE, type_of
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.runtime.errors import ContextLengthExceeded, ItemNotFound, quoted


def references_in(items: Any) -> dict[int, str]:
    """Place in ``input`` -> id of the item that is meant there. Of an input that is read already."""
    if not isinstance(items, list):
        return {}
    return {place: item.get("id") for place, item in enumerate(items) if type_of(item) == REFERENCE}


async def stored_items(
    references: dict[int, str], responses: ResponseStore, owner: str, max_model_len: int
) -> dict[int, dict[str, Any]]:
    """The items that are referred to. Raises ItemNotFound, ContextLengthExceeded and Unavailable."""
    ids = list(dict.fromkeys(references.values()))
    stored = dict(zip(ids, await responses.items(owner, ids), strict=True))
    for place, id in references.items():
        if stored[id] is None:
            raise ItemNotFound(f"no item {quoted(id)} is stored", param=f"input[{place}].id")
    read = await asyncio.to_thread(_read, {id: json for id, json in stored.items() if json is not None})
    if sum(read[id][1] for id in references.values()) > max_json_nbytes(max_model_len):
        raise ContextLengthExceeded(f"the items do not fit the context of {max_model_len} tokens", param="input")
    return {place: read[id][0] for place, id in references.items()}


def _read(stored: dict[str, bytes]) -> dict[str, tuple[dict[str, Any], int]]:
    """Each item, and the length of its JSON without images in data: URLs."""
    read = {id: (msgspec.json.decode(json), len(json)) for id, json in stored.items()}
    return {id: (item, nbytes - sum(map(len, _images(item)))) for id, (item, nbytes) in read.items()}


def _images(item: dict[str, Any]) -> Sequence[str]:
    parts = item.get("content") or item.get("output") or ()
    urls = [part.get("image_url") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [url for url in urls if isinstance(url, str) and url[:5].lower() == "data:"]
