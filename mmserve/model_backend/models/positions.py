"""Rotary positions of a sequence: what its images change of "a token's position is its index". No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmserve.messages.media import MediaSpan

Int64s = npt.NDArray[np.int64]
Table = npt.NDArray[np.int32]
_AXES = 3
"""Time, row and column."""


class SequencePositions(NamedTuple):
    """Positions of the tokens of one sequence. From the end of its last image on, they are index + ``shift``."""

    until_last_image: Table
    """[axes, tokens up to the end of the last image]."""
    shift: int


PositionFunction = Callable[[Sequence[MediaSpan]], SequencePositions]
"""A sequence's image spans, in order -> its positions. Raises ValueError for spans that contradict themselves.

Positions up to a token depend on nothing after it, so prefixes of different sequences may share cached keys.
"""
INDICES = SequencePositions(np.empty((1, 0), dtype=np.int32), 0)
"""A token's position is its index."""


def sequential_positions(spans: Sequence[MediaSpan]) -> SequencePositions:
    """For models with one axis."""
    return INDICES


def grid_positions(spans: Sequence[MediaSpan]) -> SequencePositions:
    """Three axes (M-RoPE, Wang et al. 2024).

    Text advances all axes by one a token. An image at position p has p plus its token's place in the grid, and the
    text after it goes on at p plus the larger of the grid's rows and columns.
    """
    parts: list[Int64s] = []
    index = position = 0
    for span in spans:
        times, rows, columns = span.grid
        if span.start < index or min(span.grid) < 1 or times * rows * columns != span.num_tokens:
            raise ValueError(f"an image of {span.num_tokens} tokens at {span.start} with grid {span.grid}")
        text = np.arange(position, position + span.start - index)
        parts.append(np.broadcast_to(text, (_AXES, len(text))))
        position += len(text)
        parts.append(np.indices(span.grid).reshape(_AXES, -1) + position)
        position += max(rows, columns)
        index = span.start + span.num_tokens
    if not parts:
        return INDICES
    return SequencePositions(np.concatenate(parts, axis=1, dtype=np.int32), position - index)


class SlotPositions:
    """The positions of the sequences in all slots."""

    def __init__(self, positions_of: PositionFunction, num_slots: int) -> None:
        self._positions_of = positions_of
        self._until_last_image: list[Table] = [INDICES.until_last_image] * num_slots
        self._ends: Int64s = np.zeros(num_slots, dtype=np.int64)
        """Index after each slot's last image."""
        self._shifts: Int64s = np.zeros(num_slots, dtype=np.int64)

    def enter(self, slot: int, spans: Sequence[MediaSpan]) -> None:
        """A sequence enters the slot. Raises ValueError, see ``PositionFunction``."""
        table, self._shifts[slot] = self._positions_of(spans)
        self._until_last_image[slot], self._ends[slot] = table, table.shape[1]

    def of_rows(self, slots: Int64s, starts: Int64s, counts: Int64s, indices: Int64s) -> Int64s:
        """[axes, T], or [1, T] if all axes of every row agree.

        Chunk i has ``counts[i]`` rows, for the tokens of ``slots[i]`` from index ``starts[i]`` on. indices: [T], the
        index of each row in its sequence.
        """
        after_images = (indices + np.repeat(self._shifts[slots], counts))[None]
        with_images = np.flatnonzero(starts < self._ends[slots])
        if not with_images.size:
            return after_images
        positions = after_images.repeat(_AXES, axis=0)
        first_rows = counts.cumsum() - counts
        for chunk in with_images.tolist():
            start, row = starts[chunk], first_rows[chunk]
            known = self._until_last_image[slots[chunk]][:, start : start + counts[chunk]]
            positions[:, row : row + known.shape[1]] = known
        return positions[:1] if (positions == positions[0]).all() else positions
