"""Layouts of the examination: objects in rows, columns, rings, diagonals, corners and clusters, centres anywhere.

Training scatters its objects; here they stand in order.  What is in a picture is drawn from the same lists, since the
model can know no others.  The limit of one centre a grid cell stays: it is the model's own.
"""

from __future__ import annotations

import math
import random

from training.pictures.scenes import Item, Scene, fits, random_text, write
from training.pictures.world import COLOUR_NAMES, LARGE_RADIUS, POOR_TEXT, SHAPES, SMALL_RADIUS

Spot = tuple[float, float]
Thing = tuple[str, str, str]  # shape, colour, size


def row(rng: random.Random, count: int) -> list[Spot]:
    """Side by side, on a slightly sloping line."""
    height, slope = rng.uniform(0.25, 0.75), rng.uniform(-0.12, 0.12)
    xs = [(index + 0.5) / count for index in range(count)]
    return [(x + rng.uniform(-0.02, 0.02), height + slope * (x - 0.5)) for x in xs]


def column(rng: random.Random, count: int) -> list[Spot]:
    """One below the other."""
    return [(y, x) for x, y in row(rng, count)]


def ring(rng: random.Random, count: int) -> list[Spot]:
    """Around the middle."""
    turn, reach = rng.uniform(0, 2 * math.pi), rng.uniform(0.28, 0.36)
    angles = [turn + 2 * math.pi * index / count for index in range(count)]
    return [(0.5 + reach * math.cos(angle), 0.5 + reach * math.sin(angle)) for angle in angles]


def diagonal(rng: random.Random, count: int) -> list[Spot]:
    """From corner to corner."""
    ends = rng.uniform(0.12, 0.2)
    steps = [ends + (1 - 2 * ends) * index / max(1, count - 1) for index in range(count)]
    down = rng.random() < 0.5
    return [(step, step if down else 1 - step) for step in steps]


def corners(rng: random.Random, count: int) -> list[Spot]:
    """In the corners, the middle, and the middles of the sides."""
    edge = rng.uniform(0.17, 0.24)
    grid = [(x, y) for x in (edge, 0.5, 1 - edge) for y in (edge, 0.5, 1 - edge)]
    return [(x + rng.uniform(-0.02, 0.02), y + rng.uniform(-0.02, 0.02)) for x, y in rng.sample(grid, count)]


def cluster(rng: random.Random, count: int) -> list[Spot]:
    """Close together around one place."""
    x, y, reach = rng.uniform(0.3, 0.7), rng.uniform(0.3, 0.7), 0.12 + 0.05 * count
    return [(x + rng.uniform(-reach, reach), y + rng.uniform(-reach, reach)) for _ in range(count)]


WAYS = (row, column, ring, diagonal, corners, cluster)


def things(rng: random.Random) -> list[Thing]:
    """Two to five different shapes, or one to three groups of equal ones, seven objects at most."""
    colours = rng.sample(COLOUR_NAMES, len(COLOUR_NAMES))
    if rng.random() < 0.5:
        names = rng.sample(SHAPES, rng.choice((2, 3, 3, 4, 5)))
        return [(name, tint, rng.choice(("small", "large"))) for name, tint in zip(names, colours, strict=False)]
    out: list[Thing] = []
    for tint in rng.sample(colours[:3], rng.choice((1, 2, 2, 3))):
        amount = min(rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6)), 7 - len(out))
        out += [(rng.choice(SHAPES), tint, rng.choice(("small", "small", "large")))] * amount
    return out


def stand(scene: Scene, rng: random.Random, what: list[Thing]) -> bool:
    """Puts things on the spots of one way; False when they do not fit."""
    short = min(scene.width, scene.height)
    for (name, tint, size), (x, y) in zip(what, rng.choice(WAYS)(rng, len(what)), strict=True):
        radius = rng.uniform(*(SMALL_RADIUS if size == "small" else LARGE_RADIUS))
        item = Item(name, tint, size, x, y, radius * short / scene.width, radius * short / scene.height)
        if not fits(scene, item):
            return False
        scene.shapes.append(item)
    return True


def inscribe(scene: Scene, rng: random.Random) -> bool:
    """Writes a number or a word and puts up to two shapes beside it; False when they do not fit."""
    inks = [tint for tint in COLOUR_NAMES if (tint, scene.background) not in POOR_TEXT]
    if not write(scene, rng, random_text(rng, 0.0), rng.choice(inks)):
        return False
    names = rng.sample(SHAPES, rng.choice((0, 0, 1, 2)))
    return stand(scene, rng, [(name, rng.choice(COLOUR_NAMES), "small") for name in names])


def lay_out(scene: Scene, rng: random.Random, kind: str | None) -> bool:
    """Fills an empty scene; `kind` "text" or anything; False when it did not fit."""
    if kind == "text" or (kind is None and rng.random() < 0.3):
        return inscribe(scene, rng)
    return stand(scene, rng, things(rng))
