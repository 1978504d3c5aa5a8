"""The events as vLLM encodes them: msgpack, each event a map with ``type``, or an array as before June 2026. Pure.

Names and order of the fields are vLLM's (``distributed/kv_events.py``); a batch is an array in both forms.
"""

from __future__ import annotations

import msgspec

from mmserve.config.fields import EventFormat

ExtraKey = str | tuple[str, int]
"""A cache salt, or a picture's content key and where the picture begins, counted from the block's first token."""
MEDIUM = "GPU"
"""vLLM's word for the memory that the model computes with, also on a CPU."""


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Consecutive blocks of one prompt. ``token_ids``: of all of them; those of pictures are the placeholder's.

    vLLM's subscribers want the fields without a default even where they are nil."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[ExtraKey, ...] | None] | None = None
    """One entry a block."""


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """These blocks are no longer cached."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class _StoredArray(BlockStored, tag="BlockStored", array_like=True):
    pass


class _RemovedArray(BlockRemoved, tag="BlockRemoved", array_like=True):
    pass


class _ClearedArray(AllBlocksCleared, tag="AllBlocksCleared", array_like=True):
    pass


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """``ts``: seconds since 1970."""

    ts: float
    events: list[Event]
    data_parallel_rank: int = 0
    """Always there, as a number: AIBrix does not read nil."""


_ARRAYS = {BlockStored: _StoredArray, BlockRemoved: _RemovedArray, AllBlocksCleared: _ClearedArray}
_encoder = msgspec.msgpack.Encoder()


def encode(events: list[Event], now_s: float, form: EventFormat) -> bytes:
    """One batch."""
    if form == "array":
        events = [_ARRAYS[type(event)](*msgspec.structs.astuple(event)) for event in events]
    return _encoder.encode(EventBatch(now_s, events))
