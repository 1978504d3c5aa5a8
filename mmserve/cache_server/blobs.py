"""The codecs of v2, shared by client and service."""

from __future__ import annotations

from mmserve.ipc.codec import Codec
from mmserve.messages.cache import (
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

ALLOC_REQUEST: Codec[AllocRequest] = Codec(AllocRequest)
ALLOC_REPLY: Codec[AllocReply] = Codec(AllocReply)
RELEASE_REQUEST: Codec[ReleaseRequest] = Codec(ReleaseRequest)
SET_DATA_REQUEST: Codec[SetDataRequest] = Codec(SetDataRequest)
GET_DATA_REQUEST: Codec[GetDataRequest] = Codec(GetDataRequest)
SET_EMBED_REQUEST: Codec[SetEmbedRequest] = Codec(SetEmbedRequest)
GET_EMBED_REQUEST: Codec[GetEmbedRequest] = Codec(GetEmbedRequest)
ITEM_STATES: Codec[tuple[ItemState, ...]] = Codec(tuple[ItemState, ...])
EMBED_STATES: Codec[tuple[EmbedState, ...]] = Codec(tuple[EmbedState, ...])
