"""What HTTP workers and visual servers say to the cache server; v2 sends each of these as one msgpack blob."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.messages.media import Handle

ItemState = Literal["hit", "data", "write", "wait", "gone"]
"""hit: embedding ready. data: bytes ready, to be encoded. write: you write the bytes. wait: another is writing.
gone: the item is unknown or no longer leased to the request (failed, or from before a restart): allocate again."""
EmbedState = Literal["ready", "pending", "gone"]
"""gone: the item is unknown (evicted, failed, or from before a restart)."""


class AllocItem(msgspec.Struct, frozen=True, array_like=True, cache_hash=True, gc=False):
    """One image of a request. ``key``: content key, 16 bytes or more; sizes are payload bytes in the arena."""

    key: bytes
    num_tokens: int
    data_nbytes: int
    embed_nbytes: int


class AllocRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All images of one request, all or nothing, idempotent by request id."""

    request_id: str
    items: tuple[AllocItem, ...]
    wait_s: float = 0.0


class MediaRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One allocated item, leased to the request until released."""

    item_id: int
    token_start: int
    """First of num_tokens virtual token ids; the same content always has the same range."""
    state: ItemState
    data: Handle | None
    embed: Handle


Refusal = Literal["", "full", "too_large"]


class AllocReply(msgspec.Struct, frozen=True, kw_only=True):
    """``records`` in the order of the request's items, or why not: "full" (try again) | "too_large" (never)."""

    records: tuple[MediaRecord, ...] = ()
    refused: Refusal = ""


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request is over: its leases go, and items it was still to write are free for another writer."""

    request_id: str


class SetDataRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The owner has written (ok) or failed to write the items' bytes."""

    request_id: str
    item_ids: tuple[int, ...]
    ok: bool = True


class GetDataRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Are the items' bytes ready? Waits up to wait_s for those that another is writing."""

    request_id: str
    item_ids: tuple[int, ...]
    wait_s: float = 0.0


class SetEmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Rows are written (ok) or the image cannot be encoded (ok false: the item is forgotten)."""

    item_ids: tuple[int, ...]
    ok: tuple[bool, ...]


class GetEmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which items have their embedding already?"""

    item_ids: tuple[int, ...]
