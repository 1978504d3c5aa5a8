"""Rows that an encoder has computed: several servers, or one after an eviction, ask again.

By the picture's content key: that of other clients' picture is another one where they must not share what is cached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from mmserve.messages.media import Processing


class Key(NamedTuple):
    """``content`` is empty for a picture without a content key. ``digest``: of its bytes."""

    content: bytes
    digest: bytes
    processing: Processing


class RowsCache:
    """The rows used last, at most ``limit_nbytes`` of them. Thread-safe."""

    def __init__(self, limit_nbytes: int) -> None:
        self._limit_nbytes = limit_nbytes
        self._rows: OrderedDict[Key, memoryview] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, key: Key) -> memoryview | None:
        with self._lock:
            if (rows := self._rows.get(key)) is not None:
                self._rows.move_to_end(key)
            return rows

    def put(self, key: Key, rows: memoryview) -> None:
        """Rows larger than the limit are not kept."""
        with self._lock:
            if key in self._rows or rows.nbytes > self._limit_nbytes:
                return
            self._rows[key] = rows
            self._nbytes += rows.nbytes
            while self._nbytes > self._limit_nbytes:
                self._nbytes -= self._rows.popitem(last=False)[1].nbytes
