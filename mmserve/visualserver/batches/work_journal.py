"""Which images this visual server works on, in a file that outlives it, so that its successor knows what killed it.

An image is entered before its bytes are decoded or its pixels are encoded, and removed afterwards. What a killed
process leaves in the file are suspects. Most are innocent: the process may have been killed for any reason.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mmserve.runtime.memory.mapped_file import map_file

MAX_DEATHS = 3
"""An image during whose work the visual server died this often is refused."""
_MAX_SUSPECTS = 256


class _Entry(ctypes.Structure):
    """One image. ``count`` is written last and says whether the entry is used."""

    _fields_ = (("item_id", ctypes.c_int64), ("decoding", ctypes.c_int32), ("count", ctypes.c_int32))


class WorkJournal:
    """Images in work, and suspects with the number of deaths. Thread-safe.

    Creates the file at ``path`` if needed; it stays mapped for the life of the process. ``max_images``: most images in
    work at one time.
    """

    def __init__(self, path: Path, max_images: int) -> None:
        """Take over the file of the predecessor, if there was one: the images that it worked on become suspects."""
        nbytes = ctypes.sizeof(_Entry) * (max_images + _MAX_SUSPECTS)
        entries = (_Entry * (max_images + _MAX_SUSPECTS)).from_buffer(map_file(path, nbytes))
        self._working, self._stored_suspects = entries[:max_images], entries[max_images:]
        self._free = list(self._working)
        self._lock = threading.Lock()
        self._deaths: dict[int, int] = {entry.item_id: entry.count for entry in self._stored_suspects if entry.count}
        self.died_decoding = any(entry.count and entry.decoding for entry in self._working)
        """True if the predecessor died while it decoded."""
        for item_id in {entry.item_id for entry in self._working if entry.count}:
            self._deaths[item_id] = self._deaths.pop(item_id, 0) + 1
        self._store_suspects()
        for entry in self._working:
            entry.count = 0

    def num_deaths(self, item_id: int) -> int:
        """How often the visual server died while it worked on the image; 0 for most."""
        return self._deaths.get(item_id, 0)

    @property
    def suspects(self) -> dict[int, int]:
        """Item id -> number of deaths."""
        return dict(self._deaths)

    @contextmanager
    def working(
        self,
        item_ids: Sequence[int],
        *,
        decoding: bool = False,
        ends_process: Callable[[Exception], bool] = lambda error: False,
    ) -> Iterator[None]:
        """These images are in work within the block, and stay entered after an error that ends the process."""
        with self._lock:
            entries = [self._free.pop() for _ in item_ids]
        try:
            for entry, item_id in zip(entries, item_ids, strict=True):
                entry.item_id, entry.decoding, entry.count = item_id, decoding, 1
            yield
        except Exception as error:
            if not ends_process(error):
                self._remove(entries)
            raise
        self._remove(entries)

    def clear(self, item_ids: Sequence[int]) -> None:
        """These images are done with: they are no suspects any more."""
        if self._deaths.keys().isdisjoint(item_ids):
            return
        with self._lock:
            for item_id in item_ids:
                self._deaths.pop(item_id, None)
            self._store_suspects()

    def _remove(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            entry.count = 0
        with self._lock:
            self._free += entries

    def _store_suspects(self) -> None:
        """The newest ones, if they are too many: requests for the oldest have most likely ended."""
        newest = list(self._deaths.items())[-_MAX_SUSPECTS:]
        for entry in self._stored_suspects:
            entry.count = 0
        for entry, (item_id, count) in zip(self._stored_suspects, newest, strict=False):
            entry.item_id, entry.count = item_id, count
