"""Training rows as in `training.rows`, with pictures of any size and positions of three axes.

A picture's cells have its first position as time, and go on from it by row and by column; the text behind goes on
behind the longer side.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from training import rows
from training.pictures.scenes import Scene
from training.qwen3_vl import pictures, questions
from training.qwen3_vl.shape import Grid, grid_of
from training.tokens import BOS, FIRST, IMAGE, USER, Coder

LENGTH = 160
UNMARKED = 0.05  # share of pictures without their mark


@dataclass
class Row(rows.Row):
    """``axes``: row and column positions, beside ``positions``, which are the time axis."""

    axes: list[tuple[int, int]] = field(default_factory=list)

    def add(self, ids: list[int] | tuple[int, ...], segment: int, start: int, learn: bool = False) -> int:
        self.axes += [(start + offset, start + offset) for offset in range(len(ids))]
        return super().add(ids, segment, start, learn)

    def picture(self, grid: Grid, start: int) -> int:
        """Appends a picture's cells to the prefix; returns the next position."""
        cells = np.ndindex(*grid)
        for row, column in cells:
            super().add([IMAGE], 0, start)
            self.axes.append((start + row, start + column))
        return start + max(grid)


def fill(row: Row, start: int, coder: Coder, rng: random.Random, length: int) -> None:
    """Adds segments until the row is full."""
    segment = 0
    while True:
        segment += 1
        turns = questions.segment(row.scenes[0], rng)
        coded = [(kind, coder.ids(questions.asked(question, rng)), answer) for kind, (question, answer) in turns]
        if len(row.tokens) + sum(len(ids) + 3 + len(coder.ids(answer)) for _, ids, answer in coded) > length:
            return
        place = start
        for number, (kind, ids, answer) in enumerate(coded):
            if number:
                place = row.add([USER], segment, place)
            place = row.add(ids, segment, place)
            place = row.answer(coder, kind, answer, segment, place)


def make_row(seed: int, coder: Coder, length: int = LENGTH) -> Row:
    """The row of a seed: one picture and all that is asked about it."""
    rng = random.Random(seed)
    scene = pictures.scene(seed)
    row = Row(scenes=[scene])
    start = row.add([BOS, USER, FIRST] if rng.random() > UNMARKED else [BOS, USER], 0, 0)
    fill(row, row.picture(grid_of(scene.width, scene.height), start), coder, rng, length)
    return row


@dataclass
class Batch:
    """``rows``: stacked; ``positions``: (3, n, L) time, row and column; ``scenes``: in the order of their cells."""

    rows: rows.Batch
    positions: NDArray[np.int64]

    @property
    def scenes(self) -> list[Scene]:
        return self.rows.scenes


def rows_of(first: int, count: int, coder: Coder) -> Batch:
    """The stacked rows of consecutive seeds."""
    made = [make_row(first + index, coder) for index in range(count)]
    stacked = rows.stack(list(made), LENGTH)
    positions = np.zeros((3, *stacked.tokens.shape), np.int64)
    positions[0] = stacked.positions
    for index, row in enumerate(made):
        positions[1:, index, : len(row.axes)] = np.array(row.axes).T
    return Batch(stacked, positions)
