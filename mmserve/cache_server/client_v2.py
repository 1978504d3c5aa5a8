"""The cache server's second generation of calls: all items of a request in one msgpack blob each way."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.cache_server.blobs import (
    ALLOC_REPLY,
    ALLOC_REQUEST,
    EMBED_STATES,
    GET_DATA_REQUEST,
    GET_EMBED_REQUEST,
    ITEM_STATES,
    RELEASE_REQUEST,
    SET_DATA_REQUEST,
    SET_EMBED_REQUEST,
)
from mmserve.cache_server.link import MAX_WAIT_S, Link
from mmserve.messages.cache import (
    AllocItem,
    AllocReply,
    AllocRequest,
    EmbedState,
    GetDataRequest,
    GetEmbedRequest,
    ItemState,
    ReleaseRequest,
    SetDataRequest,
    SetEmbedRequest,
)


class BatchedCalls:
    """One round trip a call, however many items."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def alloc(self, request_id: str, items: Sequence[AllocItem], wait_s: float) -> AllocReply:
        request = AllocRequest(request_id=request_id, items=tuple(items), wait_s=min(wait_s, MAX_WAIT_S))
        return ALLOC_REPLY.decode(self._link.call("alloc_v2", ALLOC_REQUEST.encode(request)))

    def release(self, request_id: str) -> None:
        self._link.call("release_v2", RELEASE_REQUEST.encode(ReleaseRequest(request_id=request_id)))

    def set_items_data(self, request_id: str, item_ids: Sequence[int], ok: bool) -> None:
        request = SetDataRequest(request_id=request_id, item_ids=tuple(item_ids), ok=ok)
        self._link.call("set_items_data_v2", SET_DATA_REQUEST.encode(request))

    def get_items_data(self, request_id: str, item_ids: Sequence[int], wait_s: float) -> Sequence[ItemState]:
        request = GetDataRequest(request_id=request_id, item_ids=tuple(item_ids), wait_s=min(wait_s, MAX_WAIT_S))
        return ITEM_STATES.decode(self._link.call("get_items_data_v2", GET_DATA_REQUEST.encode(request)))

    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> Sequence[EmbedState]:
        request = SetEmbedRequest(item_ids=tuple(item_ids), ok=tuple(ok))
        return EMBED_STATES.decode(self._link.call("set_items_embed_v2", SET_EMBED_REQUEST.encode(request)))

    def get_items_embed(self, item_ids: Sequence[int]) -> Sequence[EmbedState]:
        request = GetEmbedRequest(item_ids=tuple(item_ids))
        return EMBED_STATES.decode(self._link.call("get_items_embed_v2", GET_EMBED_REQUEST.encode(request)))
