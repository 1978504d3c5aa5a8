"""The first examination: drawn as in training, but with other seeds, layouts, papers and typefaces.

Papers: checks, dots, slanting stripes, soft blotches, in shades of the four named colours; training has none of these.
"""

from __future__ import annotations

import math
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from training.exam.layouts import lay_out
from training.pictures import fonts
from training.pictures.drawing import draw_on, encode, jitter
from training.pictures.scenes import Scene
from training.pictures.world import BACKGROUND_NAMES, BACKGROUNDS
from training.sample import File, Studio

Colour = tuple[int, int, int]
CONTRAST = 12  # of a pattern, in steps of 255


def shifted(colour: Colour, by: int) -> Colour:
    """A colour made lighter or darker as a whole."""
    return tuple(min(255, max(0, channel + by)) for channel in colour)  # type: ignore[return-value]


def checks(image: Image.Image, draw: ImageDraw.ImageDraw, shade: Colour, rng: random.Random) -> Image.Image:
    """A chessboard."""
    side = rng.randint(8, 22)
    for x in range(0, image.width, side):
        for y in range(x // side % 2 * side, image.height, 2 * side):
            draw.rectangle([x, y, x + side - 1, y + side - 1], fill=shade)
    return image


def dots(image: Image.Image, draw: ImageDraw.ImageDraw, shade: Colour, rng: random.Random) -> Image.Image:
    """Points in rows."""
    step, r = rng.randint(10, 20), rng.uniform(1.5, 3.5)
    for x in range(step // 2, image.width, step):
        for y in range(step // 2, image.height, step):
            draw.ellipse([x - r, y - r, x + r, y + r], fill=shade)
    return image


def stripes(image: Image.Image, draw: ImageDraw.ImageDraw, shade: Colour, rng: random.Random) -> Image.Image:
    """Slanting stripes."""
    step, slant = rng.randint(10, 24), rng.choice((-1, 1)) * image.height
    for x in range(-image.height, image.width + image.height, step):
        draw.line([(x, 0), (x + slant, image.height)], fill=shade, width=step // 3)
    return image


def blotches(image: Image.Image, draw: ImageDraw.ImageDraw, shade: Colour, rng: random.Random) -> Image.Image:
    """Soft large spots."""
    for _ in range(rng.randint(4, 9)):
        x, y, r = rng.uniform(0, image.width), rng.uniform(0, image.height), rng.uniform(0.1, 0.3) * image.height
        draw.ellipse([x - r, y - r, x + r, y + r], fill=shade)
    return image.filter(ImageFilter.GaussianBlur(6))


PAPERS = {"checks": checks, "dots": dots, "stripes": stripes, "blotches": blotches}


def frame(rng: random.Random, seed: int) -> Scene:
    """An empty scene on one of the four papers, sides 0.6 to 1.65 like those of training's first world."""
    short, aspect = rng.randint(130, 300), math.exp(rng.uniform(-0.5, 0.5))
    width, height = (short, round(short / aspect)) if aspect < 1 else (round(short * aspect), short)
    return Scene(width, height, rng.choice(BACKGROUND_NAMES), rng.choice(list(PAPERS)), seed, border=0.0)


def make(seed: int, kind: str | None) -> Scene:
    """The scene of a seed."""
    rng = random.Random(seed)
    while True:
        scene = frame(rng, seed)
        if lay_out(scene, rng, kind):
            return scene


def draw(scene: Scene) -> Image.Image:
    """The picture of a scene at its own size."""
    rng = random.Random(scene.seed + 3)
    base = jitter(rng, BACKGROUNDS[scene.background], 7)
    shade = shifted(base, CONTRAST if np.mean(base) < 128 else -CONTRAST)
    image = Image.new("RGB", (scene.width, scene.height), base)
    image = PAPERS[scene.style](image, ImageDraw.Draw(image), shade, rng)
    return draw_on(image, scene, rng, rng.choice(fonts.HELD_OUT))


def photograph(scene: Scene, rng: random.Random) -> File:
    """The picture as a PNG or JPEG file."""
    kind = rng.choice(("PNG", "JPEG"))
    return encode(draw(scene), kind, rng.randint(70, 95)), f"image/{kind.lower()}"


STUDIO = Studio(make, photograph)
