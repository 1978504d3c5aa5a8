"""Scenes: what is in a picture, sampled from a seed.

A `Scene` is a plain description (objects, text, background, size in pixels).  Positions are fractions of width and
height.  At most one object or character has its centre in any cell of the 8 x 8 grid the vision tower sees.  This
module knows nothing about drawing, questions, tokens or torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from training.pictures.world import (
    BACKGROUND_NAMES,
    COLOUR_NAMES,
    GRID,
    LARGE_RADIUS,
    LETTERS,
    POOR_TEXT,
    SHAPES,
    SIDE,
    SMALL_RADIUS,
    WORDS,
)

BORDER = 0.1  # of a cell, kept free around its edges by every centre


@dataclass(frozen=True)
class Item:
    """One shape or one character: name, colour, size name ("" for characters), centre and half extents (fractions)."""

    name: str
    colour: str
    size: str
    x: float
    y: float
    rx: float
    ry: float

    @property
    def cell(self) -> int:
        """Index of the patch that holds the centre, row by row."""
        return int(self.y * GRID) * GRID + int(self.x * GRID)


@dataclass
class Scene:
    """A picture's description: size in pixels, background ("" where it has no name), shapes, the text's characters, a
    seed for details, and how much of a cell centres keep free around its edges."""

    width: int
    height: int
    background: str
    style: str
    seed: int
    shapes: list[Item] = field(default_factory=list)
    chars: list[Item] = field(default_factory=list)
    stroke: int = 0
    border: float = BORDER

    @property
    def text(self) -> str:
        """The written word or number, or an empty string."""
        return "".join(char.name for char in self.chars)

    @property
    def items(self) -> list[Item]:
        """Everything that has a centre cell."""
        return self.shapes + self.chars


def clear_of_borders(x: float, y: float, border: float = BORDER) -> bool:
    """Whether a centre lies well inside its grid cell."""
    fx, fy = x * GRID % 1, y * GRID % 1
    return border < fx < 1 - border and border < fy < 1 - border


def fits(scene: Scene, item: Item) -> bool:
    """Whether an item lies inside the picture, in a free cell, and touches nothing."""
    if not (item.rx + 0.01 < item.x < 0.99 - item.rx and item.ry + 0.01 < item.y < 0.99 - item.ry):
        return False
    for other in scene.items:
        if other.cell == item.cell:
            return False
        gap_x, gap_y = abs(other.x - item.x), abs(other.y - item.y)
        if gap_x < (other.rx + item.rx) * 1.08 and gap_y < (other.ry + item.ry) * 1.08:
            return False
    return True


def place(scene: Scene, rng: random.Random, name: str, colour: str, size: str, tries: int = 40) -> bool:
    """Adds a shape at a random free place; False when none was found."""
    short = min(scene.width, scene.height)
    radius = rng.uniform(*(SMALL_RADIUS if size == "small" else LARGE_RADIUS))
    rx, ry = radius * short / scene.width, radius * short / scene.height
    for _ in range(tries):
        x, y = rng.uniform(rx + 0.01, 0.99 - rx), rng.uniform(ry + 0.01, 0.99 - ry)
        item = Item(name, colour, size, x, y, rx, ry)
        if clear_of_borders(x, y, scene.border) and fits(scene, item):
            scene.shapes.append(item)
            return True
    return False


def write(scene: Scene, rng: random.Random, text: str, colour: str) -> bool:
    """Adds a line of characters, one per grid cell, on one row of cells; False when it does not fit."""
    aspect = scene.width / scene.height
    widest = 29.0 if aspect >= 0.6 else min(29.0 * 0.6 / aspect, 0.9 * SIDE / len(text))
    for _ in range(60):
        pitch = rng.uniform(17.0, widest) / SIDE  # distance of characters, fraction of the width
        ry = pitch * aspect * rng.uniform(0.42, 0.55)  # half a capital's height
        if not 6.5 / SIDE < ry < 0.22 or pitch * len(text) > 0.95:
            continue
        x0, y = rng.uniform(pitch / 2, 1 - pitch * (len(text) - 0.5)), rng.uniform(ry + 0.02, 0.98 - ry)
        xs = [x0 + pitch * index for index in range(len(text))]
        if all(clear_of_borders(x, y, scene.border) for x in xs):
            scene.chars = [Item(c, colour, "", x, y, pitch * 0.45, ry) for c, x in zip(text, xs, strict=True)]
            return True
    return False


def random_text(rng: random.Random, loose: float) -> str:
    """A number (mostly 0-99) or a word of the list; with chance `loose` three digits, a random string of letters."""
    if rng.random() < 0.5:
        if rng.random() < 0.08 + loose:
            return str(rng.randint(100, 999))
        return str(rng.choice((rng.randint(0, 9), rng.randint(0, 99))))
    if rng.random() < loose:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 4)))
    return rng.choice(WORDS)


def fill(scene: Scene, rng: random.Random, kind: str, loose: float) -> bool:
    """Puts the contents of one picture kind into an empty scene; False when they did not fit."""
    colours = rng.sample(COLOUR_NAMES, len(COLOUR_NAMES))
    if kind == "text":
        colour = rng.choice([c for c in colours if (c, scene.background) not in POOR_TEXT])
        if not write(scene, rng, random_text(rng, loose), colour):
            return False
        for name in rng.sample(SHAPES, rng.choice((0, 0, 1, 2))):
            place(scene, rng, name, rng.choice(colours), rng.choice(("small", "small", "large")))
        return True
    if kind == "mix":
        for index, name in enumerate(rng.sample(SHAPES, rng.choice((2, 3, 3, 4, 5)))):
            colour = colours[index] if rng.random() < 0.75 else rng.choice(colours)
            place(scene, rng, name, colour, rng.choice(("small", "large")))
        return len(scene.shapes) >= 2
    pairs: set[tuple[str, str]] = set()
    room = 7
    for _ in range(rng.choice((1, 2, 2, 3))):
        pair = (rng.choice(SHAPES), rng.choice(colours[:3]))
        count = min(rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6)), room)
        if pair in pairs or count == 0:
            continue
        pairs.add(pair)
        size = "small" if count > 2 or rng.random() < 0.6 else "large"
        room -= sum(place(scene, rng, *pair, size) for _ in range(count))
    return bool(scene.shapes)


def frame(rng: random.Random, seed: int) -> Scene:
    """An empty scene of the first world: sides 0.6 to 1.65, four styles of background."""
    short, aspect = rng.randint(110, 260), math.exp(rng.uniform(-0.5, 0.5))
    width, height = (short, round(short / aspect)) if aspect < 1 else (round(short * aspect), short)
    scene = Scene(width, height, rng.choice(BACKGROUND_NAMES), rng.choice(("plain", "noise", "lines", "fade")), seed)
    scene.stroke = rng.choice((0, 1, 1, 2))
    return scene


Frame = Callable[[random.Random, int], Scene]


def make_scene(seed: int, kind: str | None = None, loose: float = 0.0, empty: Frame = frame) -> Scene:
    """The scene of a seed.  `kind`: "text", "mix" or "groups" (by chance when None); `loose`: see `random_text`;
    `empty`: makes the frame to be filled."""
    rng = random.Random(seed)
    kind = kind or rng.choices(("text", "mix", "groups"), (30, 35, 35))[0]
    while True:
        scene = empty(rng, seed)
        if fill(scene, rng, kind, loose):
            return scene
