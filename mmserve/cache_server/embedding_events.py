"""Tells programs of other projects whose embeddings are in the arena, in batches like those of KV events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from mmserve.cache_server.entry_store import EmbeddingChange
from mmserve.config.config import Config
from mmserve.config.event_options import replay_endpoint_of
from mmserve.config.fields import EventFormat
from mmserve.ipc.events.publisher import Publisher
from mmserve.runtime.byte_budget import MIB


class EmbeddingStored(msgspec.Struct, tag=True, gc=False):
    """``key``: of the picture, as ``/v1/chat/completions/render`` and KV events have it."""

    key: str
    tokens: int


class EmbeddingRemoved(msgspec.Struct, tag=True, gc=False):
    """It is not in the arena any more."""

    key: str


class AllEmbeddingsCleared(msgspec.Struct, tag=True, gc=False):
    """The arena is empty."""


Event = EmbeddingStored | EmbeddingRemoved | AllEmbeddingsCleared


class _StoredArray(EmbeddingStored, tag="EmbeddingStored", array_like=True):
    pass


class _RemovedArray(EmbeddingRemoved, tag="EmbeddingRemoved", array_like=True):
    pass


class _ClearedArray(AllEmbeddingsCleared, tag="AllEmbeddingsCleared", array_like=True):
    pass


_ARRAYS = {EmbeddingStored: _StoredArray, EmbeddingRemoved: _RemovedArray, AllEmbeddingsCleared: _ClearedArray}
_encoder = msgspec.msgpack.Encoder()


class Publishes(Protocol):
    """Implemented by Publisher."""

    def publish(self, number: int, payload: bytes) -> None: ...


class EmbeddingFeed:
    """``form``: as that of KV events. ``now``: seconds since 1970."""

    def __init__(self, publisher: Publishes, form: EventFormat, now: Callable[[], float] = time.time) -> None:
        self._publisher = publisher
        self._form = form
        self._number = 0
        self._now = now
        self._publish([AllEmbeddingsCleared()])

    def publish(self, changes: Sequence[EmbeddingChange]) -> None:
        """Those since the last call, in their order."""
        if changes:
            self._publish([_event(*change) for change in changes])

    def _publish(self, events: list[Event]) -> None:
        if self._form == "array":
            events = [_ARRAYS[type(event)](*msgspec.structs.astuple(event)) for event in events]
        self._publisher.publish(self._number, _encoder.encode((self._now(), events, 0)))
        self._number += 1


def _event(key: bytes, num_tokens: int) -> Event:
    return EmbeddingStored(key.hex(), num_tokens) if num_tokens else EmbeddingRemoved(key.hex())


@contextmanager
def publishing(config: Config) -> Iterator[EmbeddingFeed | None]:
    """None without --embedding-events-endpoint. Raises StartupError."""
    endpoint = config.embedding_events_endpoint
    if endpoint is None:
        yield None
        return
    topic = (config.kv_events_topic or "").replace("kv@", "mm@", 1)
    nbytes = int(config.kv_events_buffer_mb * MIB)
    with Publisher(endpoint, replay_endpoint_of(endpoint), topic, nbytes, what="embedding") as publisher:
        yield EmbeddingFeed(publisher, config.kv_events_format)
