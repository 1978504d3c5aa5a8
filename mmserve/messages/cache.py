"""Calls of HTTP workers and visual servers to the cache server by v2: one message each way."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.messages.media import Handle

ItemState = Literal["hit", "data", "write", "wait", "gone"]
"""hit: embedding ready. data: bytes ready, to be encoded. write: the caller writes the bytes. wait: another request is
writing. gone: the item is unknown or not leased to the request (failed, or from before a restart): allocate again."""
EmbedState = Literal["ready", "pending", "gone"]
"""gone: the item is unknown (evicted, failed, or from before a restart)."""


MAX_WAIT_S = 600.0
"""Longest wait_s that one call may ask for; longer waits are cut to it."""


class Register(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="register"):
    """The first message of each connection, and only the first. An owner's leases end with its last connection."""

    owner: str


class AllocItem(msgspec.Struct, frozen=True, array_like=True, cache_hash=True, gc=False):
    """One image of a request. ``key``: content key, 16 bytes or more; sizes are payload bytes in the arena."""

    key: bytes
    num_tokens: int
    data_nbytes: int
    embed_nbytes: int


class AllocRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="alloc"):
    """Lease all images of one request or none; idempotent by request id."""

    request_id: str
    items: tuple[AllocItem, ...]
    wait_s: float = 0.0


class MediaRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One item, leased to the request until released."""

    item_id: int
    token_start: int
    """First of num_tokens virtual token ids; the same content always has the same range."""
    state: ItemState
    data: Handle | None
    embed: Handle


Refusal = Literal["", "full", "too_large"]


class AllocReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="allocated"):
    """``records`` in the order of the request's items, or the refusal: "full" (try again) | "too_large" (never)."""

    records: tuple[MediaRecord, ...] = ()
    refused: Refusal = ""


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="release"):
    """The request has ended: its leases end, and items that it was writing are left to another writer."""

    request_id: str


class SetDataRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="set_items_data"):
    """The request has written (ok) or failed to write the items' bytes."""

    request_id: str
    item_ids: tuple[int, ...]
    ok: bool = True


class GetDataRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="get_items_data"):
    """States of items; waits up to wait_s for those that another request is writing."""

    request_id: str
    item_ids: tuple[int, ...]
    wait_s: float = 0.0


class SetEmbedRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="set_items_embed"):
    """Rows are written (ok) or the image cannot be encoded (ok false: the item is forgotten)."""

    item_ids: tuple[int, ...]
    ok: tuple[bool, ...]


class GetEmbedRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="get_items_embed"):
    """States of items' embeddings."""

    item_ids: tuple[int, ...]


class PermitRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request with images to decode, of about ``pixel_nbytes`` bytes of pixels; ``name``: of its permit."""

    name: str
    pixel_nbytes: int
    arrival_s: float
    """CLOCK_MONOTONIC. Permits are granted in this order."""


class AcquirePermitsRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="acquire_permits"):
    """May these requests' images be decoded? Waits up to wait_s until at least one is granted or promised."""

    requests: tuple[PermitRequest, ...]
    wait_s: float = 0.0


class PermitsReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="permits"):
    """Names of the permits granted. ``promised``: granted when the caller's only permit ends: it may start the request
    then, without another call, and tells the cache server that the first permit has ended as always."""

    granted: tuple[str, ...] = ()
    promised: str = ""


class ReleasePermitRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="release_permit"):
    """The permit has ended, or is not wanted any more."""

    name: str


class UnregisterRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="unregister"):
    """The owner is about to end in good order: leases that it still has when its connections end are leaks."""


class NamedImage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a name stands for: an image in the table, with the facts of its header that a request needs."""

    item: AllocItem
    width: int
    height: int
    loading_nbytes: int


class SetNamesRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="set_names"):
    """From now on these names (32 bytes each) stand for these images. ``images[i]`` is the one of ``names[i]``."""

    names: tuple[bytes, ...]
    images: tuple[NamedImage, ...]


class GetNamesRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="get_names"):
    """The images of names; None for those that stand for nothing, or for an image that is not stored any more."""

    names: tuple[bytes, ...]


StoredState = Literal["absent", "bytes", "embedding"]
"""Of an image that somebody asks about: not stored, or its bytes are incomplete; to be encoded; encoded."""


class StoredImage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the table has of an image. ``token_start``: the first of its virtual token ids, which it keeps when it is
    evicted; -1: it has none."""

    state: StoredState = "absent"
    token_start: int = -1


class LookUpRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="look_up"):
    """What is stored of these images? Nothing is leased, and nothing changes."""

    items: tuple[AllocItem, ...]


class BeatRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="beat"):
    """The owner lives. Its leases and permits end when none comes for long."""


CacheRequest = (
    Register
    | AllocRequest
    | ReleaseRequest
    | SetDataRequest
    | GetDataRequest
    | SetEmbedRequest
    | GetEmbedRequest
    | AcquirePermitsRequest
    | ReleasePermitRequest
    | UnregisterRequest
    | BeatRequest
    | SetNamesRequest
    | GetNamesRequest
    | LookUpRequest
)
"""The replies, in this order: None, AllocReply, None, None, tuples of ItemState, EmbedState, EmbedState, PermitsReply,
None, None, None, None, a tuple of NamedImage or None, a tuple of StoredImage."""


class CallFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="failed"):
    """Instead of a reply: the call was invalid or failed by a bug. The connection goes on."""

    message: str
