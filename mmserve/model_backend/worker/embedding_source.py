"""Where a rank reads embedding rows: the arena of its machine, or what came with the plan from another machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mmserve.ipc.arena import StaleHandle
from mmserve.messages.media import Handle
from mmserve.messages.step import RowPiece


class EmbeddingSource(Protocol):
    """An ``Arena``, or ``SentRows``."""

    def check(self, handle: Handle) -> None:
        """Raises StaleHandle if the embedding is lost."""

    def part(self, handle: Handle, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the embedding, in writable memory. Raises StaleHandle."""


class SentRows:
    """The rows of the plan that is computed now."""

    def __init__(self) -> None:
        self._pieces: Sequence[RowPiece] = ()

    def replace(self, pieces: Sequence[RowPiece]) -> None:
        """Drop the rows of the plan before."""
        self._pieces = pieces

    def check(self, handle: Handle) -> None:
        if not any(piece.embed == handle for piece in self._pieces):
            raise StaleHandle("no rows of this embedding came with the plan")

    def part(self, handle: Handle, start: int, end: int) -> memoryview:
        for piece in self._pieces:
            if piece.embed == handle and piece.first <= start and end <= piece.first + len(piece.rows):
                return memoryview(piece.rows)[start - piece.first : end - piece.first]
        raise StaleHandle("these rows did not come with the plan")
