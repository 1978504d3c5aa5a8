"""The same pictures and questions in other files: JPEG and WebP qualities, sizes, aspect ratios.

File formats and sizes are variants of one picture of 256 x 256 pixels, question by question; another aspect ratio needs
other layouts, so there only the number of questions is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from PIL import Image

from training.pictures.drawing import draw_scene, encode
from training.pictures.scenes import Scene, frame, make_scene
from training.sample import File, Sample, Studio, samples

SIDE = 256
REFERENCE = "PNG, 256 × 256"
KINDS = (
    "colour", "shape", "size", "count", "relation", "where", "number", "word", "background", "existence", "describe",
    "follow-up", "two",
)  # fmt: skip
QUALITIES = (("JPEG", 50), ("JPEG", 65), ("JPEG", 80), ("JPEG", 95), ("WEBP", 50), ("WEBP", 80))
SIZES = (64, 128, 512, 1024, 2048)
ASPECTS = ((2, 1), (3, 1), (1, 2), (1, 3))


def scene(aspect: float, seed: int, kind: str | None) -> Scene:
    """A scene of some width to height, its longer side 256 pixels for 1:1 and up to 444 for 3:1 (equal areas)."""

    def empty(rng: random.Random, seed: int) -> Scene:
        made = frame(rng, seed)
        made.width, made.height = round(SIDE * aspect**0.5), round(SIDE / aspect**0.5)
        return made

    return make_scene(seed, kind, empty=empty)


def as_file(form: str, quality: int, shown: Scene, rng: random.Random) -> File:
    """The picture in a file format."""
    return encode(draw_scene(shown), form, quality), f"image/{form.lower()}"


def at_size(side: int, shown: Scene, rng: random.Random) -> File:
    """The picture at another size: drawn larger, or made smaller."""
    factor = max(1, side // SIDE)
    shown = replace(shown, width=shown.width * factor, height=shown.height * factor, stroke=shown.stroke * factor)
    image = draw_scene(shown)
    if side < SIDE:
        image = image.resize((side, side), Image.Resampling.LANCZOS)
    return encode(image), "image/png"


def studios() -> dict[str, Studio]:
    """Every variant by name, the reference first."""
    png: Callable[[Scene, random.Random], File] = partial(as_file, "PNG", 0)
    square = partial(scene, 1.0)
    out = {REFERENCE: Studio(square, png)}
    out |= {f"{form} {quality}": Studio(square, partial(as_file, form, quality)) for form, quality in QUALITIES}
    out |= {f"{side} × {side}": Studio(square, partial(at_size, side)) for side in SIZES}
    return out | {f"{wide}:{high}": Studio(partial(scene, wide / high), png) for wide, high in ASPECTS}


def variants(count: int, first: int) -> Iterator[Sample]:
    """About `count` questions, equally many of each variant, whose name takes the kind's place."""
    all_studios = studios()
    each = max(1, round(count / len(all_studios)))
    for name, studio in all_studios.items():
        for sample in samples(each, 0, KINDS, studio, first):
            yield replace(sample, kind=name)
