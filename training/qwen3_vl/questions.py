"""Questions on a scene: those of `training.words.questions` that this model learns, and which shape is outermost.

The latter can be answered by the axes of the positions alone: the tower does not say where a cell is. `samples` are
held-out questions in OpenAI's chat format, with pictures as PNG and JPEG files of up to three times the size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from training import sample
from training.pictures.scenes import Scene
from training.qwen3_vl.pictures import place, scene, stands_apart
from training.qwen3_vl.shape import grid_of
from training.sample import FIRST_SEED, Sample
from training.words import questions
from training.words.phrasebook import put
from training.words.questions import Turn

SIDES = {"left": (1, -1), "right": (1, 1), "above": (0, -1), "below": (0, 1)}
"""Axis (rows, columns) and direction."""
HELD_OUT = ("colour", "shape", "count", "existence", "side")
NUMBER = 10  # keeps the seeds of held-out questions apart from those of training.exam.sets
CLEAR = 0.08  # of a side, between the outermost shape and the next


def side(made: Scene, rng: random.Random) -> Turn | None:
    """The shape that is outermost on a side, alone in the last row or column of cells that has any."""
    grid = grid_of(made.width, made.height)
    for name in rng.sample(list(SIDES), len(SIDES)):
        axis, sign = SIDES[name]
        ordered = sorted(made.shapes, key=lambda item: sign * place(item, grid)[axis], reverse=True)
        if len(ordered) < 2:
            return None
        first, second = (place(item, grid)[axis] for item in ordered[:2])
        if int(first) != int(second) and abs(first - second) > CLEAR * grid[axis]:
            return f"Which shape is {name}{' of' if axis else ''} all others?", ordered[0].name
    return None


ASK = {kind: questions.ASK[kind] for kind in ("colour", "shape", "count", "existence", "background", "size")}
ASK |= {"side": side}
KINDS = {"colour": 4.0, "shape": 3.0, "count": 5.0, "existence": 5.0, "background": 0.7, "size": 0.7, "side": 8.0}
"""How often each is asked."""


def single(made: Scene, rng: random.Random, without: str = "") -> tuple[str, Turn]:
    """A (kind, turn) on one picture, kinds drawn by weight among those the scene allows."""
    kinds = [kind for kind in KINDS if kind != without]
    while True:
        kind = rng.choices(kinds, [KINDS[kind] for kind in kinds])[0]
        if turn := ASK[kind](made, rng):
            return kind, turn


def segment(made: Scene, rng: random.Random) -> list[tuple[str, Turn]]:
    """The turns of one segment of a row with their kinds, one or two. A side is asked for first only: the axes are then
    a few positions away."""
    return [single(made, rng, "side" if number else "") for number in range(rng.choice((1, 1, 1, 2)))]


def asked(question: str, rng: random.Random) -> str:
    """A third of the time in other words."""
    return put(question, rng) if rng.random() < 0.33 else question


def draw_one(kind: str, seed: int, longest: float) -> Sample | None:
    """The sample of a seed, or None where its scene is nearer to a square or does not allow the kind."""
    rng = random.Random(seed)
    made = scene(seed * 2)
    turn = ASK[kind](made, rng)
    if turn is None or max(made.width, made.height) < longest * min(made.width, made.height):
        return None
    image = sample.photograph(made, rng)
    return Sample(kind, [sample.user(turn[0], image)], [image[0]], turn[1]) if stands_apart(made) else None


def samples(n: int, seed: int, kinds: Sequence[str] = HELD_OUT, longest: float = 1.0) -> Iterator[Sample]:
    """n held-out samples from seeds that training never uses; the kinds come in turn. `longest`: the least ratio of a
    picture's longer side to the other, at most 3."""
    for index in range(n):
        first = FIRST_SEED * (NUMBER + 2) + (seed * 1_000_000 + index) * 1000
        drawn = (draw_one(kinds[index % len(kinds)], first + attempt, longest) for attempt in range(1000))
        yield next(found for found in drawn if found)
