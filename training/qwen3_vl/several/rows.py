"""Training rows with one to three pictures, in one turn or in several, out of a pool of pictures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training import rows
from training.pictures.scenes import Scene
from training.qwen3_vl import questions
from training.qwen3_vl.rows import Batch, Row
from training.qwen3_vl.several import questions as several
from training.qwen3_vl.shape import grid_of
from training.tokens import BOS, FIRST, NEXT, SECOND, USER, Coder
from training.words.questions import Turn

LENGTH = 208
MARKS = (FIRST, SECOND, NEXT)
COUNTS = (1, 2, 3)
SHARES = (0.35, 0.35, 0.3)  # of rows with so many pictures
TURNS = 0.35  # of the rows with several pictures: each picture comes in a turn of its own
KINDS = {"colour of one": 5.0, "shape of one": 4.0, "which picture": 2.5}
TRIES = 8  # to find a question of a kind, and a kind that has one
NEWEST = 0.6  # share of questions on the newest picture, where pictures came in several turns


def turns_of(scenes: list[Scene], apart: bool, rng: random.Random) -> list[tuple[str, Turn]]:
    """The turns of a segment with their kinds."""
    if len(scenes) == 1:
        return questions.segment(scenes[0], rng)
    if apart and rng.random() < NEWEST:
        kind, turn = questions.single(scenes[-1], rng)
        return [(f"newest {kind}", turn)]
    for _ in range(TRIES):
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        for _ in range(TRIES):
            if turn := several.asked(kind, scenes, rng):
                return [(kind, turn)]
    return []


def prefix(row: Row, scenes: list[Scene], apart: bool, coder: Coder, rng: random.Random) -> int:
    """The pictures with their marks; with `apart`, each in a turn of its own, with a question on it between. Returns
    the next position."""
    start = row.add([BOS, USER], 0, 0)
    for index, scene in enumerate(scenes):
        if apart and index:
            kind, (question, answer) = questions.single(scenes[index - 1], rng, "side")
            start = row.add(coder.ids(questions.asked(question, rng)), 0, start)
            start = row.answer(coder, kind, answer, 0, start)
            start = row.add([USER], 0, start)
        start = row.add([MARKS[index]], 0, start)
        start = row.picture(grid_of(scene.width, scene.height), start)
    return start


def make_row(seed: int, coder: Coder, pool: Sequence[Scene]) -> tuple[Row, list[int]]:
    """The row of a seed, and which pictures of the pool it has."""
    rng = random.Random(seed)
    count = rng.choices(COUNTS, SHARES)[0]
    chosen = [rng.randrange(len(pool)) for _ in range(count)]
    scenes = [pool[index] for index in chosen]
    apart = count > 1 and rng.random() < TURNS
    row = Row(scenes=scenes)
    start, segment = prefix(row, scenes, apart, coder, rng), 0
    while turns := turns_of(scenes, apart, rng):
        segment += 1
        coded = [(kind, coder.ids(questions.asked(question, rng)), answer) for kind, (question, answer) in turns]
        if len(row.tokens) + sum(len(ids) + 3 + len(coder.ids(answer)) for _, ids, answer in coded) > LENGTH:
            break
        place = start
        for number, (kind, ids, answer) in enumerate(coded):
            if number:
                place = row.add([USER], segment, place)
            place = row.add(ids, segment, place)
            place = row.answer(coder, kind, answer, segment, place)
    return row, chosen


@dataclass
class Lesson:
    """``batch``: rows; ``chosen``: index in the pool of each of their pictures, in the order of their cells."""

    batch: Batch
    chosen: list[int]


def lesson(first: int, count: int, coder: Coder, pool: Sequence[Scene]) -> Lesson:
    """The stacked rows of consecutive seeds."""
    made = [make_row(first + index, coder, pool) for index in range(count)]
    stacked = rows.stack([row for row, _ in made], LENGTH)
    positions = np.zeros((3, *stacked.tokens.shape), np.int64)
    positions[0] = stacked.positions
    for index, (row, _) in enumerate(made):
        positions[1:, index, : len(row.axes)] = np.array(row.axes).T
    return Lesson(Batch(stacked, positions), [index for _, chosen in made for index in chosen])
