"""The marks in the arena's extents without an arena, for tests of the table alone."""

from __future__ import annotations

from mmserve.messages.media import Handle


class NoMarks:
    """Notes what was erased; ``written`` has the handles of extents in which a writer is at work."""

    def __init__(self) -> None:
        self.erased: list[Handle] = []
        self.written: set[Handle] = set()

    def open(self, handle: Handle) -> None:
        return None

    def erase(self, handle: Handle) -> None:
        self.erased.append(handle)

    def is_being_written(self, handle: Handle) -> bool:
        return handle in self.written
