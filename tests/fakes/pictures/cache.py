"""A real cache server on a Unix socket inside the test process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmserve.cache_server.owners import Owners
from mmserve.cache_server.rpc.services import serving
from mmserve.cache_server.run import new_table
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.waiting.decode_permits import DecodePermits
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.cache import AllocItem


@contextmanager
def serving_cache(
    endpoints: Endpoints, arena: Arena, permits: DecodePermits | None = None, owners: Owners | None = None
) -> Iterator[SharedMediaTable]:
    """Serves until the block ends. A second call for the same endpoints acts as a restarted server."""
    table = SharedMediaTable(new_table(arena), permits, owners=owners)
    with serving(table, endpoints):
        yield table


def alloc_item(name: str, data_nbytes: int = 100, embed_nbytes: int = 100, num_tokens: int = 4) -> AllocItem:
    """An item whose key is its name."""
    return AllocItem(name.encode().ljust(16, b"\0"), num_tokens, data_nbytes, embed_nbytes)


def arena_for(num_items: int) -> Arena:
    """An arena with room for the bytes and embeddings of this many ``alloc_item``s."""
    return Arena.create(num_items * 2 * extent_nbytes(100))


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Poll until the condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.005)
