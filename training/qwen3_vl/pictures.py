"""Scenes, their pictures as the tower takes them, and the oracle code of every cell.

The code is that of `training.pictures.labels` without positions: where a cell is, only its axes tell. It comes in two
streams of (cells, 256), STREAMS: the prompt's rows and DeepStack's.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from training.pictures import labels, looks
from training.pictures.scenes import Item, Scene, make_scene
from training.pictures.world import BACKGROUND_NAMES, CLASS_INDEX, COLOUR_NAMES, SIZES
from training.qwen3_vl.shape import CELL, MERGE, PATCH, Grid, grid_of
from training.words.phrases import tally

BORDER = 0.08  # of a patch, kept free around its edges by every centre
STREAMS: tuple[tuple[str, ...], ...] = (("kind", "size", "ground", *labels.TALLIES), ("colour",))
CHANNELS = ("kind", "colour", "size", *labels.TALLIES)
"""Rows of a scene's indices; 0 is nothing."""
WIDEST = 1.1  # logarithm of the longer side by the shorter: 3:1
Ints = NDArray[np.int64]


def frame(rng: random.Random, seed: int) -> Scene:
    """An empty scene: 110 to 520 pixels on the short side, up to 3:1."""
    short = rng.randint(110, 260) * rng.choice((1, 1, 1, 1, 2))
    ratio = math.exp(rng.uniform(0, WIDEST))
    sides = (short, round(short * ratio))
    width, height = sides if rng.random() < 0.5 else sides[::-1]
    style = rng.choice(("plain", "noise", "lines", "fade"))
    return Scene(width, height, rng.choice(BACKGROUND_NAMES), style, seed, border=0.0)


def scene(seed: int, _kind: str | None = None) -> Scene:
    """The scene of a seed: shapes only, no two in one cell, none on a patch's edge."""
    for each in itertools.count(seed, looks.SEEDS_APART):
        made = make_scene(each, ("mix", "groups")[each % 2], empty=frame)
        if stands_apart(made):
            return made
    raise AssertionError


def place(item: Item, grid: Grid) -> tuple[float, float]:
    """Row and column of the centre, in cells."""
    return item.y * grid[0], item.x * grid[1]


def cell(item: Item, grid: Grid) -> int:
    """Index of the cell that holds the centre, row by row."""
    row, column = place(item, grid)
    return int(row) * grid[1] + int(column)


def stands_apart(made: Scene) -> bool:
    """Whether every shape has a cell of its own and its centre is clear of the edges of patches."""
    grid = grid_of(made.width, made.height)
    inside = all(BORDER < part * MERGE % 1 < 1 - BORDER for item in made.shapes for part in place(item, grid))
    return inside and len({cell(item, grid) for item in made.shapes}) == len(made.shapes)


def patches(image: Image.Image) -> tuple[NDArray[np.uint8], Grid]:
    """(patches, 3 * PATCH**2) as the image processor orders them, and the cells."""
    grid = rows, columns = grid_of(*image.size)
    small = image.convert("RGB").resize((columns * CELL, rows * CELL), Image.Resampling.BICUBIC)
    parts = np.asarray(small).reshape(rows, MERGE, PATCH, columns, MERGE, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(parts.reshape(rows * columns * MERGE**2, -1)), grid


def pixels(bytes_: Tensor) -> Tensor:
    """(patches, 3 * PATCH**2) bytes -> (patches, 6 * PATCH**2) numbers as the tower takes them: two equal frames."""
    frames = (bytes_.float() / 127.5 - 1).view(len(bytes_), 3, 1, PATCH**2)
    return frames.expand(-1, -1, 2, -1).reshape(len(bytes_), -1)


def indices(made: Scene, grid: Grid) -> Ints:
    """(channels, cells), rows as in CHANNELS."""
    out = np.zeros((len(CHANNELS), grid[0] * grid[1]), np.int64)
    for item in made.shapes:
        alike = ((item.colour, item.name), (None, item.name), (item.colour, None), (None, None))
        own = CLASS_INDEX[item.name], COLOUR_NAMES.index(item.colour) + 1, SIZES.index(item.size) + 1
        out[:, cell(item, grid)] = *own, *(tally(made, *pair) for pair in alike)
    return out


def centres(made: Scene, grid: Grid) -> NDArray[np.bool_]:
    """(patches,) whether a shape's centre is in a patch, in the processor's order."""
    rows, columns = grid[0] * MERGE, grid[1] * MERGE
    out = np.zeros((rows, columns), bool)
    for item in made.shapes:
        out[int(item.y * rows), int(item.x * columns)] = True
    return out.reshape(grid[0], MERGE, grid[1], MERGE).transpose(0, 2, 1, 3).reshape(-1)


def code(index: Ints, ground: int) -> labels.Array:
    """(channels, cells) and a background -> (cells, CODE) of all streams together."""
    cells = np.arange(index.shape[1])
    out = np.zeros((index.shape[1], labels.CODE), np.float32)
    for name, values in zip(CHANNELS, index, strict=True):
        if name in labels.TALLIES:
            out[:, labels.GROUPS[name]] = values[:, None] == np.arange(1, 8)
        else:
            out[cells, labels.GROUPS[name].start + values] = 1
    out[:, labels.GROUPS["ground"].start + ground] = 1
    return out


def streams(codes: Tensor, basis: Tensor) -> list[Tensor]:
    """(cells, CODE) -> the two streams (cells, 256)."""
    groups = [[labels.GROUPS[name] for name in names] for names in STREAMS]
    return [sum(codes[:, group] @ basis[group] for group in stream) for stream in groups]  # type: ignore[misc]


@dataclass(frozen=True)
class Pictures:
    """Several pictures behind one another. C cells and N patches in all."""

    patches: Tensor
    """(N, 3 * PATCH**2) bytes."""
    grids: Tensor
    """(pictures, 3) frames, rows and columns of patches."""
    index: Tensor
    """(channels, C)."""
    grounds: Tensor
    """(C,) index of the background."""
    centres: Tensor
    """(N,) whether a shape's centre is in a patch."""
    codes: Tensor
    """(C, CODE)."""


def draw(scenes: list[Scene]) -> Pictures:
    """The scenes' pictures, drawn, with all labels."""
    drawn, grids, index, grounds, middles, codes = [], [], [], [], [], []
    for made in scenes:
        found, grid = patches(looks.photograph(made))
        ground = BACKGROUND_NAMES.index(made.background)
        drawn.append(found)
        grids.append((1, grid[0] * MERGE, grid[1] * MERGE))
        index.append(indices(made, grid))
        grounds.append(np.full(index[-1].shape[1], ground))
        middles.append(centres(made, grid))
        codes.append(code(index[-1], ground))
    parts = ((drawn, 0), (index, 1), (grounds, 0), (middles, 0), (codes, 0))
    bytes_, *others = (torch.from_numpy(np.concatenate(part, axis)) for part, axis in parts)
    return Pictures(bytes_, torch.tensor(grids), *others)
