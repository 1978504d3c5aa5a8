"""The cache server's table without its socket: the calls of HTTP workers and visual servers."""

from __future__ import annotations

import itertools

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.table import MediaTable
from mmserve.messages.cache import AllocItem
from tests.fakes.pictures.marks import NoMarks

_VISUAL = "visual"


class TableDriver:
    """Makes the calls of requests with one image each, on a table over ``nbytes`` without memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.media = MediaTable(nbytes, first_generation=1, first_item_id=1, first_token=1 << 32, arena=NoMarks())
        self._numbers = itertools.count()

    def start(self, item: AllocItem) -> tuple[Lease, str]:
        """Start a request: allocate, write and encode the image. Returns its lease, and the state or refusal."""
        lease = Lease("http", str(next(self._numbers)))
        reply = self.media.alloc(lease, (item,))
        if reply.refused:
            return lease, reply.refused
        (record,) = reply.records
        if record.state != "hit":
            ids = (record.item_id,)
            self.media.set_data(lease, ids, True)
            self.media.get_embed(_VISUAL, ids)
            self.media.set_embed(_VISUAL, ids, (True,))
        return lease, record.state

    def end(self, lease: Lease) -> None:
        """End the request of the lease."""
        self.media.release(lease)

    def request(self, item: AllocItem) -> bool:
        """Start and end a request. True if its embedding was cached."""
        lease, state = self.start(item)
        self.end(lease)
        return state == "hit"
