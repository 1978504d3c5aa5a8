"""The state of one request while it acquires its leases, and what the cache server's records ask of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mmserve.httpserver.call import MediaItem
from mmserve.httpserver.mm_cache.named_images import not_stored
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord


@dataclass
class LeaseRequest:
    """Records and items are in the same order. States: see ``messages.cache.ItemState``."""

    request_id: str
    items: Sequence[MediaItem]
    alloc_items: list[AllocItem]
    """``items`` as they are sent to the cache server."""
    deadline_s: float
    written: set[int] = field(default_factory=set)
    """Indices of items that this request has written itself, so their stored bytes need no comparison."""
    write_s: float = 0.0
    written_nbytes: int = 0

    def nbytes(self, indices: Sequence[int]) -> list[int]:
        """Length of each item's bytes."""
        return [len(self.items[index].data) for index in indices]

    def to_write(self, records: Sequence[MediaRecord]) -> dict[int, int]:
        """Item id -> index of one item in state "write". Raises MediaNotStored for an image without its bytes."""
        jobs = {record.item_id: index for index, record in enumerate(records) if record.state == "write"}
        for index in jobs.values():
            if self.items[index].stored is not None:  # evicted since its name was looked up
                raise not_stored(self.items[index].param)
        return jobs

    def mark_written(self, records: Sequence[MediaRecord], jobs: Mapping[int, int]) -> list[MediaRecord]:
        """This request has written the items of ``jobs`` (see ``to_write``). Returns the records with their states."""
        self.written.update(jobs.values())
        self.written_nbytes += sum(self.nbytes([*jobs.values()]))
        return with_states(records, dict.fromkeys(jobs, "data"))

    def stored_by_others(self, records: Sequence[MediaRecord]) -> list[int]:
        """Indices of items of which other requests have written bytes under the same content key."""
        return [
            index
            for index, record in enumerate(records)
            if record.state == "data"
            and index not in self.written
            and self.items[index].stored is None
            and self.alloc_items[index].key == self.items[index].key
        ]

    def replace_keys(self, keys: Mapping[int, bytes]) -> None:
        """``keys``: by index."""
        for index, key in keys.items():
            self.alloc_items[index] = msgspec.structs.replace(self.alloc_items[index], key=key)


def with_states(records: Sequence[MediaRecord], states: Mapping[int, ItemState]) -> list[MediaRecord]:
    """``states``: by item id; the others keep theirs."""
    return [msgspec.structs.replace(record, state=states.get(record.item_id, record.state)) for record in records]
