"""The first way a scene is drawn: Pillow's plain polygons and letters on four kinds of paper, no anti-aliased edges.

It draws what a `Scene` says and chooses only details (a shade, a line's distance) by the scene's seed.
"""

from __future__ import annotations

import io
import math
import random

import numpy as np
from PIL import Image, ImageDraw

from training.pictures import fonts
from training.pictures.scenes import Scene
from training.pictures.world import BACKGROUNDS, COLOURS


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
    return draw_on(paper(scene, rng), scene, rng)


def draw_on(image: Image.Image, scene: Scene, rng: random.Random, font_name: str = fonts.BUILT_IN) -> Image.Image:
    """Draws a scene's objects and text on its paper, in place."""
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
        font = fonts.face(font_name, size)
        draw.text(middle, char.name, fill=ink, font=font, anchor="mm", stroke_width=scene.stroke, stroke_fill=ink)
    return image


def encode(image: Image.Image, kind: str = "PNG", quality: int = 85) -> bytes:
    """The picture as the bytes of a PNG, JPEG or WebP file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **({} if kind == "PNG" else {"quality": quality}))
    return buffer.getvalue()
