"""The second drawing routine, kept apart from training: nothing of `training.pictures.drawing` is used here.

Three times the size and brought down, so that edges are smooth; shapes of other proportions, turned a little, filled
with gradients, with or without outlines; letters turned a little; photographs, toned photographs and gradients as
backgrounds; aspect ratios up to 2.2 either way.
"""

from __future__ import annotations

import io
import math
import random

import numpy as np
from PIL import Image, ImageDraw

from training.exam import photographs
from training.exam.layouts import lay_out
from training.pictures import fonts
from training.pictures.scenes import Item, Scene
from training.pictures.world import BACKGROUND_NAMES, BACKGROUNDS, COLOURS
from training.sample import File, Studio

FINE = 3  # pixels drawn for one kept, each way
Points = list[tuple[float, float]]
TONED, PHOTO, GRADIENT = "toned", "photo", "gradient"


def make(seed: int, kind: str | None) -> Scene:
    """The scene of a seed: a photograph has no background colour that could be asked for."""
    rng = random.Random(seed)
    while True:
        short, aspect = rng.randint(140, 320), math.exp(rng.uniform(0.0, 0.8) * rng.choice((-1, 1)))
        width, height = (short, round(short / aspect)) if aspect < 1 else (round(short * aspect), short)
        style = rng.choice((TONED, PHOTO, GRADIENT))
        ground = "" if style == PHOTO else rng.choice(BACKGROUND_NAMES)
        scene = Scene(width, height, ground, style, seed, border=0.0)
        if lay_out(scene, rng, kind):
            return scene


def ramp(start: tuple[int, ...], end: tuple[int, ...], width: int, height: int, angle: float) -> Image.Image:
    """A gradient from one colour to another in the direction of an angle."""
    x, y = np.linspace(-0.5, 0.5, width)[None], np.linspace(-0.5, 0.5, height)[:, None]
    along = np.clip(0.5 + (x * math.cos(angle) + y * math.sin(angle)), 0, 1)[..., None]
    mixed = np.array(start) * (1 - along) + np.array(end) * along
    return Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8))


def change(colour: tuple[int, ...], by: float) -> tuple[int, ...]:
    """A lighter (by > 0) or darker shade."""
    return tuple(int(min(255, max(0, channel + by))) for channel in colour)


def backdrop(scene: Scene, rng: random.Random, width: int, height: int) -> Image.Image:
    """The background; a toned photograph and a gradient keep the named colour."""
    if not scene.background:  # muted, so that the eight colours stand out
        image = photographs.photograph(rng, width, height)
        return Image.blend(image, image.convert("L").convert("RGB"), 0.6)
    base = BACKGROUNDS[scene.background]
    plain = ramp(change(base, rng.uniform(-14, 0)), change(base, rng.uniform(0, 14)), width, height, rng.uniform(0, 6))
    if scene.style == GRADIENT:
        return plain
    return Image.blend(plain, photographs.photograph(rng, width, height).convert("L").convert("RGB"), 0.16)


def corners(name: str, r: float, rng: random.Random) -> Points:
    """A shape's corners around (0, 0); a circle has many."""
    if name == "circle":
        return [(r * math.cos(math.pi * k / 40), r * math.sin(math.pi * k / 40)) for k in range(80)]
    if name == "square":
        s = r * rng.uniform(0.78, 0.9)
        return [(-s, -s), (s, -s), (s, s), (-s, s)]
    if name == "diamond":
        w = r * rng.uniform(0.68, 0.85)
        return [(0, -r), (w, 0), (0, r), (-w, 0)]
    if name == "triangle":
        return [(0, -r), (r * rng.uniform(0.85, 1.0), r * 0.8), (-r * rng.uniform(0.85, 1.0), r * 0.8)]
    if name == "cross":
        t = r * rng.uniform(0.26, 0.38)
        quarter = [(t, -r), (t, -t), (r, -t), (r, t), (t, t), (t, r)]
        return quarter + [(-x, -y) for x, y in quarter]
    inner = rng.uniform(0.4, 0.5)
    reach = [r * (1.0 if k % 2 == 0 else inner) for k in range(10)]
    return [(d * math.sin(math.pi * k / 5), -d * math.cos(math.pi * k / 5)) for k, d in enumerate(reach)]


def turned(points: Points, angle: float, x: float, y: float) -> Points:
    """Points turned around (0, 0) and moved to (x, y)."""
    cos, sin = math.cos(angle), math.sin(angle)
    return [(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in points]


def put_shape(image: Image.Image, item: Item, rng: random.Random) -> None:
    """A shape with a gradient inside and, mostly, an outline."""
    x, y, r = item.x * image.width, item.y * image.height, item.rx * image.width
    points = turned(corners(item.name, r, rng), rng.uniform(-0.12, 0.12), x, y)
    mask = Image.new("L", image.size, 0)
    ImageDraw.Draw(mask).polygon(points, fill=255)
    left, top, right, bottom = box = mask.getbbox() or (0, 0, 1, 1)
    colour = COLOURS[item.colour]
    inside = ramp(
        change(colour, rng.uniform(-18, 0)),
        change(colour, rng.uniform(0, 18)),
        right - left,
        bottom - top,
        rng.uniform(0, 6),
    )
    image.paste(inside, box[:2], mask.crop(box))
    if rng.random() < 0.7:
        edge = rng.choice((change(colour, -70), change(colour, 60), (0, 0, 0), (255, 255, 255)))
        ImageDraw.Draw(image).line([*points, *points[:2]], fill=edge, width=round(r * rng.uniform(0.06, 0.12)) or 1)


def put_text(image: Image.Image, scene: Scene, rng: random.Random) -> None:
    """The text's characters, each turned a little, on a thin rim of the paper's light or dark."""
    name = rng.choice(fonts.HELD_OUT)
    ink = change(COLOURS[scene.chars[0].colour], rng.uniform(-14, 14))
    rim = change((255,) * 3 if scene.background in ("", "black") else (0,) * 3, rng.uniform(-5, 5))
    rimmed = not scene.background or rng.random() < 0.3
    for char in scene.chars:
        size = round(2 * char.ry * image.height / 0.74)
        angle, corner = rng.uniform(-6, 6), (round(char.x * image.width - size), round(char.y * image.height - size))
        for colour, width in ((rim, size // 40 + size // 20), (ink, size // 40))[0 if rimmed else 1 :]:
            tile = Image.new("L", (2 * size, 2 * size), 0)
            font = fonts.face(name, size)
            ImageDraw.Draw(tile).text((size, size), char.name, fill=255, font=font, anchor="mm", stroke_width=width)
            image.paste(colour, corner, tile.rotate(angle, Image.Resampling.BILINEAR))


def draw(scene: Scene) -> Image.Image:
    """The picture of a scene at its own size."""
    rng = random.Random(scene.seed + 5)
    image = backdrop(scene, rng, scene.width, scene.height)
    image = image.resize((scene.width * FINE, scene.height * FINE), Image.Resampling.BILINEAR)
    for item in scene.shapes:
        put_shape(image, item, rng)
    if scene.chars:
        put_text(image, scene, rng)
    return image.resize((scene.width, scene.height), Image.Resampling.LANCZOS)


def photograph(scene: Scene, rng: random.Random) -> File:
    """The picture as a PNG, JPEG or WebP file."""
    kind = rng.choice(("PNG", "JPEG", "WEBP"))
    buffer = io.BytesIO()
    draw(scene).save(buffer, kind, **({} if kind == "PNG" else {"quality": rng.randint(70, 95)}))
    return buffer.getvalue(), f"image/{kind.lower()}"


STUDIO = Studio(make, photograph)
