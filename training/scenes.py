"""Scenes: what is in a picture, sampled from a seed, and how Pillow draws it.

A `Scene` is a plain description (objects, text, background, size in pixels).  Positions are fractions of width and
height.  At most one object or character has its centre in any cell of the 8 x 8 grid the vision tower sees, never
close to a cell's border.  This module knows nothing about questions, tokens or torch.
"""

from __future__ import annotations

import io
import math
import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from training.world import (
    BACKGROUND_NAMES,
    BACKGROUNDS,
    COLOUR_NAMES,
    COLOURS,
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
    """A picture's description: size in pixels, background, shapes, the text's characters, and a seed for details."""

    width: int
    height: int
    background: str
    style: str
    seed: int
    shapes: list[Item] = field(default_factory=list)
    chars: list[Item] = field(default_factory=list)
    stroke: int = 0

    @property
    def text(self) -> str:
        """The written word or number, or an empty string."""
        return "".join(char.name for char in self.chars)

    @property
    def items(self) -> list[Item]:
        """Everything that has a centre cell."""
        return self.shapes + self.chars


def clear_of_borders(x: float, y: float) -> bool:
    """Whether a centre lies well inside its grid cell."""
    fx, fy = x * GRID % 1, y * GRID % 1
    return BORDER < fx < 1 - BORDER and BORDER < fy < 1 - BORDER


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
        if clear_of_borders(x, y) and fits(scene, item):
            scene.shapes.append(item)
            return True
    return False


def write(scene: Scene, rng: random.Random, text: str, colour: str) -> bool:
    """Adds a line of characters, one per grid cell, on one row of cells; False when it does not fit."""
    aspect = scene.width / scene.height
    for _ in range(60):
        pitch = rng.uniform(17.0, 29.0) / SIDE  # distance of characters, fraction of the width
        ry = pitch * aspect * rng.uniform(0.42, 0.55)  # half a capital's height
        if not 6.5 / SIDE < ry < 0.22 or pitch * len(text) > 0.95:
            continue
        x0, y = rng.uniform(pitch / 2, 1 - pitch * (len(text) - 0.5)), rng.uniform(ry + 0.02, 0.98 - ry)
        xs = [x0 + pitch * index for index in range(len(text))]
        if all(clear_of_borders(x, y) for x in xs):
            scene.chars = [Item(c, colour, "", x, y, pitch * 0.45, ry) for c, x in zip(text, xs, strict=True)]
            return True
    return False


def random_text(rng: random.Random, loose: float) -> str:
    """A number (mostly 0-99) or a word of the list; with chance `loose` a random string of letters instead."""
    if rng.random() < 0.5:
        return str(
            rng.randint(100, 999) if rng.random() < 0.08 else rng.choice((rng.randint(0, 9), rng.randint(0, 99)))
        )
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


def make_scene(seed: int, kind: str | None = None, loose: float = 0.0) -> Scene:
    """The scene of a seed.  `kind`: "text", "mix" or "groups" (by chance when None); `loose`: see `random_text`."""
    rng = random.Random(seed)
    kind = kind or rng.choices(("text", "mix", "groups"), (30, 35, 35))[0]
    while True:
        short, aspect = rng.randint(110, 260), math.exp(rng.uniform(-0.5, 0.5))
        width, height = (short, round(short / aspect)) if aspect < 1 else (round(short * aspect), short)
        scene = Scene(
            width, height, rng.choice(BACKGROUND_NAMES), rng.choice(("plain", "noise", "lines", "fade")), seed
        )
        scene.stroke = rng.choice((0, 1, 1, 2))
        if fill(scene, rng, kind, loose):
            return scene


@lru_cache(maxsize=512)
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's built-in typeface, so that every machine draws the same picture."""
    return ImageFont.load_default(size)


def jitter(rng: random.Random, colour: tuple[int, int, int], by: int = 14) -> tuple[int, int, int]:
    """A colour a little off."""
    return tuple(min(255, max(0, channel + rng.randint(-by, by))) for channel in colour)  # type: ignore[return-value]


def outline(name: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    """Corners of a shape (all but the circle) with centre (x, y) and half extent r, in pixels."""
    if name == "square":
        s = r * 0.86
        return [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)]
    if name == "diamond":
        return [(x, y - r), (x + r * 0.8, y), (x, y + r), (x - r * 0.8, y)]
    if name == "triangle":
        return [(x, y - r), (x + r, y + r * 0.85), (x - r, y + r * 0.85)]
    if name == "cross":
        t = r * 0.34
        arm = [(t, -r), (t, -t), (r, -t)]
        arms = [arm, [(-b, a) for a, b in arm], [(-a, -b) for a, b in arm], [(b, -a) for a, b in arm]]
        return [(x + a, y + b) for corners in arms for a, b in corners]
    turns = [math.pi * index / 5 for index in range(10)]
    reach = [r * (1.05 if index % 2 == 0 else 0.45) for index in range(10)]
    return [(x + d * math.sin(turn), y - d * math.cos(turn)) for d, turn in zip(reach, turns, strict=True)]


def paper(scene: Scene, rng: random.Random) -> Image.Image:
    """The empty background: plain, noisy, with thin lines, or fading from top to bottom."""
    base = jitter(rng, BACKGROUNDS[scene.background], 7)
    if scene.style in ("plain", "lines"):
        image = Image.new("RGB", (scene.width, scene.height), base)
        if scene.style == "lines":
            draw, shade = ImageDraw.Draw(image), jitter(rng, base, 12)
            for y in range(rng.randint(4, 12), scene.height, rng.randint(9, 20)):
                draw.line([(0, y), (scene.width, y)], fill=shade)
        return image
    generator = np.random.default_rng(scene.seed)
    if scene.style == "noise":
        change = generator.integers(-10, 11, (scene.height, scene.width, 1))
    else:
        change = np.linspace(-9, 9, scene.height)[:, None, None] * np.ones((1, scene.width, 1))
    return Image.fromarray(np.clip(np.array(base) + change, 0, 255).astype(np.uint8))


def draw_scene(scene: Scene) -> Image.Image:
    """The picture of a scene, RGB, at its own size."""
    rng = random.Random(scene.seed + 1)
    image = paper(scene, rng)
    draw = ImageDraw.Draw(image)
    for item in scene.shapes:
        x, y, r = item.x * scene.width, item.y * scene.height, item.rx * scene.width
        fill_colour = jitter(rng, COLOURS[item.colour])
        if item.name == "circle":
            draw.ellipse([x - r, y - r, x + r, y + r], fill=fill_colour)
        else:
            draw.polygon(outline(item.name, x, y, r), fill=fill_colour)
    ink = jitter(rng, COLOURS[scene.chars[0].colour]) if scene.chars else (0, 0, 0)
    for char in scene.chars:
        size = max(10, round(2 * char.ry * scene.height / 0.72))
        middle = (char.x * scene.width, char.y * scene.height)
        draw.text(middle, char.name, fill=ink, font=font(size), anchor="mm", stroke_width=scene.stroke, stroke_fill=ink)
    return image


def encode(image: Image.Image, kind: str = "PNG", quality: int = 85) -> bytes:
    """The picture as the bytes of a PNG or JPEG file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": quality} if kind == "JPEG" else {}))
    return buffer.getvalue()
