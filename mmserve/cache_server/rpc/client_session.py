"""One connection's part in keeping its owner alive: the same for every transport. Knows no call."""

from __future__ import annotations

import threading

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.rpc.disconnect_watcher import DisconnectWatcher
from mmserve.cache_server.shared_table import SharedMediaTable


class ClientSession:
    """From a connection's registration to its end. ``fd`` is watched: its end is seen even while a call waits."""

    def __init__(self, table: SharedMediaTable, hangups: DisconnectWatcher, owner: str, fd: int) -> None:
        """Raises ValueError for an owner without a name."""
        if not owner:
            raise ValueError("register with a name")
        self.owner = owner
        self._table = table
        self._left = threading.Lock()
        table.connect(owner)
        try:
            hangups.watch(fd, self.leave)
        except OSError:
            self.leave()
            raise

    def lease(self, request_id: str) -> Lease:
        """Of one of the owner's requests. Raises ValueError for one without a name."""
        if not request_id:
            raise ValueError("name a request")
        return Lease(self.owner, request_id)

    def leave(self) -> None:
        """Once, from whoever notices first that the connection is over."""
        if self._left.acquire(blocking=False):
            self._table.disconnect(self.owner)
