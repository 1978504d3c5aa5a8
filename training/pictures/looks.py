"""Varied pictures for training: typefaces, outlines, gradients, textures, soft edges, file artefacts, sizes, aspects.

A third of the scenes stay as in the first world (`training.pictures.scenes.frame`, `training.pictures.drawing`). The
examination's papers, typefaces and second drawing routine (`training.exam`) are others and share no code with this
module.
"""

from __future__ import annotations

import io
import itertools
import math
import random
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from training.pictures import fonts
from training.pictures.drawing import draw_scene, encode, jitter, outline
from training.pictures.scenes import Item, Scene, frame, make_scene
from training.pictures.world import BACKGROUND_NAMES, BACKGROUNDS, COLOURS

FINE = (96, 96)  # pixels of a surface before it is brought to its size
ROUGH = Image.Resampling.BILINEAR
SEEDS_APART = 10_000_000  # of scenes that are drawn in place of others
VARIED = "varied"  # the style of scenes that are drawn here
Colour = tuple[int, int, int]


def sides(rng: random.Random) -> tuple[int, int]:
    """Width and height, either way: two of five up to 1.6:1, one from there to 2.5:1, two to 3.3:1."""
    short = rng.randint(64, 120) if rng.random() < 0.25 else rng.randint(110, 260)
    least, most = rng.choice(((1.0, 1.6), (1.0, 1.6), (1.6, 2.5), (2.5, 3.3), (2.5, 3.3)))
    long = round(short * math.exp(rng.uniform(math.log(least), math.log(most))))
    return (short, long) if rng.random() < 0.5 else (long, short)


def wide_frame(rng: random.Random, seed: int) -> Scene:
    """An empty scene: of the first world, or varied, centres nearly anywhere in their cells, sometimes without a
    background that has a name."""
    if rng.random() < 0.33:
        made = frame(rng, seed)
        if rng.random() < 0.4:
            made.width, made.height = sides(rng)
        return made
    ground = "" if rng.random() < 0.25 else rng.choice(BACKGROUND_NAMES)
    return Scene(*sides(rng), ground, VARIED, seed, border=0.02, stroke=rng.choice((0, 0, 1, 2)))


def scene(seed: int, loose: float = 0.0) -> Scene:
    """Training's scene of a seed; `loose` as in `make_scene`."""
    return make_scene(seed, None, loose, wide_frame)


def writing(seed: int, loose: float, wanted: Callable[[str], bool]) -> Scene:
    """The first of the scenes that a seed leads to whose text is as wanted."""
    seeds = itertools.count(seed, SEEDS_APART)
    return next(made for each in seeds if wanted((made := scene(each, loose)).text))


def clouds(generator: np.random.Generator, size: tuple[int, int], channels: int, cells: int) -> Image.Image:
    """Smooth random patches: a coarse random grid, enlarged."""
    grid = generator.integers(0, 256, (cells, cells, channels), dtype=np.uint8)
    return Image.fromarray(grid.squeeze()).resize(size, Image.Resampling.BICUBIC)


def texture(generator: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """A busy coloured surface: patches of two scales, bands over it, muted; made small, since it is drawn often."""
    large, small = (clouds(generator, FINE, 3, int(cells)) for cells in generator.integers((2, 8), (6, 40)))
    image = Image.blend(large, small, generator.uniform(0.1, 0.6))
    draw = ImageDraw.Draw(image)
    for _ in range(generator.integers(0, 5)):
        x, y, w, h = generator.uniform(0, FINE[0], 4)
        x, w, y, h = (0, FINE[0], y, h) if generator.random() < 0.5 else (x, w, 0, FINE[1])  # a band is no square
        draw.rectangle([x, y, x + w, y + h], fill=tuple(int(v) for v in generator.integers(30, 225, 3)))
    image = Image.blend(image, image.convert("L").convert("RGB"), generator.uniform(0.5, 0.95))
    return image.resize(size, ROUGH if generator.random() < 0.5 else Image.Resampling.BICUBIC)


def surface(scene: Scene, rng: random.Random, size: tuple[int, int]) -> Image.Image:
    """The background: a busy surface where it has no name, else the named colour, plain, shaded, patched or grainy."""
    generator = np.random.default_rng(scene.seed)
    if not scene.background:
        return texture(generator, size)
    base = Image.new("RGB", size, jitter(rng, BACKGROUNDS[scene.background], 10))
    way = rng.choice(("plain", "shaded", "patched", "grainy", "textured"))
    if way == "plain":
        return base
    if way == "shaded":
        over, most = Image.linear_gradient("L").rotate(rng.choice((0, 90, 180, 270))), 0.1
    elif way == "patched":
        over, most = clouds(generator, FINE, 1, rng.randint(2, 12)), 0.14
    elif way == "grainy":
        speckles = np.clip(generator.normal(128, rng.uniform(20, 60), FINE), 0, 255)
        over, most = Image.fromarray(speckles.astype(np.uint8)), 0.2
    else:
        over, most = texture(generator, FINE).convert("L"), 0.18
    return Image.blend(base, over.resize(size, ROUGH).convert("RGB"), rng.uniform(0.02, most))


def shaded(colour: Colour, size: tuple[int, int], rng: random.Random) -> Image.Image:
    """A colour getting lighter towards one side."""
    ramp = Image.linear_gradient("L").rotate(rng.choice((0, 90, 180, 270))).resize(size)
    by = rng.randint(4, 24)
    light, dark = (tuple(min(255, max(0, c + sign * by)) for c in colour) for sign in (1, -1))
    return Image.composite(Image.new("RGB", size, light), Image.new("RGB", size, dark), ramp)


def rim(colour: Colour, rng: random.Random) -> Colour:
    """An outline's colour: black, white, or the shape's own darkened or lightened."""
    by = rng.choice((-90, -60, 50))
    own = tuple(min(255, max(0, channel + by)) for channel in colour)
    return rng.choice(((10, 10, 10), (250, 250, 250), own, own))  # type: ignore[return-value]


def corners(item: Item, x: float, y: float, r: float, angle: float) -> list[tuple[float, float]]:
    """A shape's corners turned around its centre, in pixels."""
    if item.name == "circle":
        return [(x + r * math.cos(k * math.pi / 24), y + r * math.sin(k * math.pi / 24)) for k in range(48)]
    cos, sin = math.cos(angle), math.sin(angle)
    return [(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in outline(item.name, 0.0, 0.0, r)]


def paint(image: Image.Image, item: Item, rng: random.Random, style: tuple[bool, bool]) -> None:
    """One shape; `style`: gradients, outlines."""
    gradients, outlines = style
    x, y, r = item.x * image.width, item.y * image.height, item.rx * image.width * rng.uniform(0.94, 1.04)
    points, colour = corners(item, x, y, r, rng.uniform(-0.15, 0.15)), jitter(rng, COLOURS[item.colour], 16)
    draw = ImageDraw.Draw(image)
    if gradients:
        mask = Image.new("L", image.size)
        ImageDraw.Draw(mask).polygon(points, fill=255)
        left, top, right, bottom = box = mask.getbbox() or (0, 0, 1, 1)
        image.paste(shaded(colour, (right - left, bottom - top), rng), (left, top), mask.crop(box))
    else:
        draw.polygon(points, fill=colour)
    if outlines and rng.random() < 0.8:
        draw.line([*points, *points[:2]], fill=rim(colour, rng), width=max(1, round(r * rng.uniform(0.05, 0.14))))


def letter(image: Image.Image, scene: Scene, rng: random.Random, scale: int) -> None:
    """The text in one typeface, letters turned a little or straight, sometimes with a rim."""
    face, ink = rng.choice(fonts.TRAINING), jitter(rng, COLOURS[scene.chars[0].colour], 16)
    lean = rng.choice((0.0, 0.0, rng.uniform(2, 9)))
    edge = (250, 250, 250) if scene.background in ("", "black") else (10, 10, 10)
    rims = (scene.stroke + 2) * scale if not scene.background or rng.random() < 0.2 else 0
    for char in scene.chars:
        size = max(10, round(2 * char.ry * image.height / 0.72 * rng.uniform(0.95, 1.05)))
        corner, angle = (
            (round(char.x * image.width - size), round(char.y * image.height - size)),
            rng.uniform(-lean, lean),
        )
        for colour, width in ((edge, rims), (ink, scene.stroke * scale)):
            if colour == ink or rims:
                tile = Image.new("L", (2 * size, 2 * size))
                middle, font = (size, size), fonts.face(face, size)
                ImageDraw.Draw(tile).text(middle, char.name, fill=255, font=font, anchor="mm", stroke_width=width)
                image.paste(colour, corner, tile.rotate(angle, Image.Resampling.BILINEAR) if angle else tile)


def draw(scene: Scene) -> Image.Image:
    """The picture of a scene, RGB, at its own size."""
    if scene.style != VARIED:
        return draw_scene(scene)
    rng = random.Random(scene.seed + 7)
    scale = rng.choice((1, 2))  # two: soft edges
    image = surface(scene, rng, (scene.width * scale, scene.height * scale))
    style = rng.random() < 0.4, rng.random() < 0.45
    for item in scene.shapes:
        paint(image, item, rng, style)
    if scene.chars:
        letter(image, scene, rng, scale)
    return image.reduce(scale) if scale > 1 else image


def photograph(scene: Scene) -> Image.Image:
    """The picture as it comes out of a file: as it is, JPEG or WebP of some quality, sometimes a little blurred."""
    image, rng = draw(scene), random.Random(scene.seed + 2)
    if scene.style == VARIED and rng.random() < 0.15:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.012 * min(image.size))))
    if rng.random() < 0.4:
        form = rng.choice(("JPEG",) * 6 + ("WEBP",))
        image = Image.open(io.BytesIO(encode(image, form, rng.randint(45, 95)))).convert("RGB")
    return image
