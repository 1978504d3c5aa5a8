"""Photographs to draw on: those that the scikit-image package holds, where it is installed; else pretended ones.

The pretended photographs are noise with the 1/f spectrum of natural pictures, a horizon and soft lights out of focus.
Nothing is downloaded: only files inside the installed package are opened.
"""

from __future__ import annotations

import importlib.util
import random
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

NAMES = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png", "gravel.png",
    "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png", "rocket.jpg",
)  # fmt: skip
SIDE = 256


@lru_cache(maxsize=1)
def packaged() -> tuple[Path, ...]:
    """The photographs of an installed scikit-image."""
    package = importlib.util.find_spec("skimage")
    folders = [Path(folder) / "data" for folder in (package.submodule_search_locations or [])] if package else []
    return tuple(path for folder in folders for name in NAMES if (path := folder / name).exists())


@lru_cache(maxsize=len(NAMES))
def opened(path: Path) -> Image.Image:
    """A photograph of at most 512 pixels a side."""
    image = Image.open(path).convert("RGB")
    image.thumbnail((512, 512))
    return image


def grain(generator: np.random.Generator) -> np.ndarray:
    """(SIDE, SIDE) noise of 1/f amplitude, mean 0, deviation 1."""
    rates = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None]) * SIDE
    spectrum = np.fft.rfft2(generator.standard_normal((SIDE, SIDE))) / np.maximum(rates, 1)
    noise = np.fft.irfft2(spectrum, (SIDE, SIDE))
    return (noise - noise.mean()) / noise.std()


def pretended(rng: random.Random) -> Image.Image:
    """A picture like a photograph of a landscape or a room with lights."""
    generator = np.random.default_rng(rng.randrange(2**32))
    above, below = generator.uniform(40, 225, (2, 3))
    horizon = np.clip((np.arange(SIDE) / SIDE - rng.uniform(0.2, 0.8)) * rng.uniform(2, 30), -0.5, 0.5) + 0.5
    base = above + (below - above) * horizon[:, None, None]
    shade = grain(generator)[..., None] * rng.uniform(12, 40) + grain(generator)[..., None] * generator.normal(0, 8, 3)
    image = Image.fromarray(np.clip(base + shade, 0, 255).astype(np.uint8))
    lights = image.copy()
    draw = ImageDraw.Draw(lights)
    for _ in range(rng.randint(0, 9)):
        x, y, r = rng.uniform(0, SIDE), rng.uniform(0, SIDE), rng.uniform(4, 30)
        draw.ellipse([x - r, y - r, x + r, y + r], fill=tuple(int(v) for v in generator.uniform(30, 245, 3)))
    return Image.blend(image, lights.filter(ImageFilter.GaussianBlur(rng.uniform(6, 10))), 0.7)


def photograph(rng: random.Random, width: int, height: int) -> Image.Image:
    """A part of some photograph, RGB, at the size asked for."""
    paths = packaged()
    whole = opened(rng.choice(paths)) if paths else pretended(rng)
    aspect = width / height
    side = rng.uniform(0.5, 1.0) * min(whole.width / aspect, whole.height)
    x, y = rng.uniform(0, whole.width - side * aspect), rng.uniform(0, whole.height - side)
    return whole.resize((width, height), Image.Resampling.BICUBIC, (x, y, x + side * aspect, y + side))


def source() -> str:
    """What the photographs are, for a report."""
    return f"{len(packaged())} photographs of scikit-image" if packaged() else "pretended photographs (no scikit-image)"
