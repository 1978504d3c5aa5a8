"""Client of v1: rpyc, one item a call, scalars and tuples of them, as LightLLM had it."""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from mmserve.cache_server.rpc.connection_pool import CALL_MARGIN_S, LOST, ConnectionPool
from mmserve.messages.cache import (
    MAX_WAIT_S,
    AllocItem,
    AllocReply,
    EmbedState,
    ItemState,
    MediaRecord,
    NamedImage,
    PermitRequest,
    PermitsReply,
    StoredImage,
)
from mmserve.messages.media import Handle
from mmserve.runtime.errors import Unavailable

_CONFIG = {"allow_pickle": False, "close_catchall": True}
logger = logging.getLogger(__name__)


class RpycConnection:
    """Caches the bound remote methods, so that a call is one round trip."""

    def __init__(self, path: Path, owner: str, *, timeout_s: float = CALL_MARGIN_S) -> None:
        """``timeout_s``: for each step of connecting and registering."""
        self._methods: dict[str, Callable[..., Any]] = {}
        # rpyc's own unix_connect compresses what is larger than 3000 bytes.
        self._channel = Channel(SocketStream.unix_connect(str(path), timeout_s), compress=False)
        self._rpyc = rpyc.connect_channel(self._channel, config={**_CONFIG, "sync_request_timeout": timeout_s})
        self._readable = select.poll()
        self._readable.register(self._rpyc, select.POLLIN)
        self.call("register", owner, timeout_s=timeout_s)

    def call(self, method: str, *args: Any, timeout_s: float = CALL_MARGIN_S) -> Any:
        if method not in self._methods:
            self._methods[method] = rpyc.async_(getattr(self._rpyc.root, method))
        result = self._methods[method](*args)
        answers: list[object] = []
        result.add_callback(answers.append)
        deadline_s = time.monotonic() + timeout_s
        while not answers:
            # rpyc's own timeouts follow the time of day, which may jump. It gets control only when it need not wait.
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._readable.poll(left_s * 1000):
                raise TimeoutError(f"{method} was not answered within {timeout_s:g} s")
            self._rpyc.serve(0)
        return result.value

    def beat(self) -> None:
        self.call("beat")

    def close(self) -> None:
        self._methods.clear()
        with contextlib.suppress(*LOST, OSError):
            self._channel.close()  # first, or rpyc would tell the server and wait for its answer
            self._rpyc.close()

    def __del__(self) -> None:
        """A thread that ends drops its connection here, at once, rather than at some garbage collection."""
        if hasattr(self, "_rpyc"):
            self.close()


class ItemwiseCalls:
    """One round trip an item."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def alloc(self, request_id: str, items: Sequence[AllocItem], wait_s: float) -> AllocReply:
        """Item by item. Once one does not fit, the server has released all of them and only collects the rest;
        ``await_alloc`` then waits for space for the whole request, and the records are asked for again."""
        replies = [self._alloc_item(request_id, item) for item in items]
        if all(reply.refused == "" for reply in replies):
            return _joined(replies)
        wait_s = float(min(wait_s, MAX_WAIT_S))
        refused = self._call("await_alloc", request_id, wait_s, wait_s=wait_s)
        if refused:
            return AllocReply(refused=refused)
        return _joined([self._alloc_item(request_id, item) for item in items])

    def release(self, request_id: str) -> None:
        self._call("release", request_id)

    def set_items_data(self, request_id: str, item_ids: Sequence[int], ok: bool) -> None:
        for item_id in item_ids:
            self._call("set_items_data", request_id, item_id, ok)

    def get_items_data(self, request_id: str, item_ids: Sequence[int], wait_s: float) -> Sequence[ItemState]:
        """Ask for all without waiting; while some say "wait" and none "write" or "gone", wait for one of those."""
        deadline_s = time.monotonic() + min(wait_s, MAX_WAIT_S)
        while True:
            states = [self._call("get_items_data", request_id, item_id, 0.0) for item_id in item_ids]
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or "wait" not in states or "write" in states or "gone" in states:
                return states
            self._call("get_items_data", request_id, item_ids[states.index("wait")], left_s, wait_s=left_s)

    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> Sequence[EmbedState]:
        return [self._call("set_items_embed", item_id, item_ok) for item_id, item_ok in zip(item_ids, ok, strict=True)]

    def get_items_embed(self, item_ids: Sequence[int]) -> Sequence[EmbedState]:
        return [self._call("get_items_embed", item_id) for item_id in item_ids]

    def acquire_permits(self, requests: Sequence[PermitRequest], wait_s: float) -> PermitsReply:
        fields = tuple((request.name, request.pixel_nbytes, request.arrival_s) for request in requests)
        granted, promised = self._call("acquire_permits", fields, wait_s, wait_s=min(wait_s, MAX_WAIT_S))
        return PermitsReply(granted=granted, promised=promised)

    def release_permit(self, name: str) -> None:
        self._call("release_permit", name)

    def set_names(self, names: Sequence[bytes], images: Sequence[NamedImage]) -> None:
        for name, image in zip(names, images, strict=True):
            spec = image.item.key, image.item.num_tokens, image.item.data_nbytes, image.item.embed_nbytes
            fields = (*spec, image.width, image.height, image.loading_nbytes)
            self._call("set_name", name, fields)

    def get_names(self, names: Sequence[bytes]) -> Sequence[NamedImage | None]:
        found = [self._call("get_name", name) for name in names]
        return [image and NamedImage(AllocItem(*image[:4]), *image[4:]) for image in found]

    def look_up(self, items: Sequence[AllocItem]) -> Sequence[StoredImage]:
        specs = [(item.key, item.num_tokens, item.data_nbytes, item.embed_nbytes) for item in items]
        return [StoredImage(*self._call("look_up", *spec)) for spec in specs]

    def unregister(self) -> None:
        self._call("unregister")

    def _call(self, method: str, *args: Any, wait_s: float = 0.0) -> Any:
        """Raises the server's exception if the call fails there, twice: all calls may be repeated."""
        try:
            return self._pool.call(method, *args, wait_s=wait_s)
        except Unavailable:
            raise
        except Exception:
            # Boundary of one call: rpyc raises the server's exception here, whatever its type is.
            logger.exception("the cache server could not carry out %s; trying once more", method)
            return self._pool.call(method, *args, wait_s=wait_s)

    def _alloc_item(self, request_id: str, item: AllocItem) -> AllocReply:
        refused, record = self._call(
            "alloc", request_id, item.key, item.num_tokens, item.data_nbytes, item.embed_nbytes
        )
        if refused:
            return AllocReply(refused=refused)
        item_id, token_start, state, data, embed = record
        return AllocReply(records=(MediaRecord(item_id, token_start, state, data and Handle(*data), Handle(*embed)),))


def _joined(replies: Sequence[AllocReply]) -> AllocReply:
    refused = [reply for reply in replies if reply.refused]
    return refused[0] if refused else AllocReply(records=tuple(reply.records[0] for reply in replies))
