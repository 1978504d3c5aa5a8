"""The oracle code: what a perfect eye would say about every patch, computed from a scene without any pixels.

`code` gives 108 numbers a patch: one-hot class, colour, size and background of the thing whose centre lies in the
patch, a character's place in its word, the centre's position spread over 8 + 8 bins (linear interpolation, so the place
inside the patch is kept), and how many shapes there are like it (`TALLIES`).  `basis` turns them into the 256 numbers
of a projected picture token: 108 fixed orthonormal directions.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from training.pictures.scenes import Scene
from training.pictures.world import BACKGROUND_NAMES, CLASS_INDEX, CLASSES, COLOUR_NAMES, GRID, PATCHES, SIZES
from training.words.phrases import tally

Array = NDArray[np.float32]
Ints = NDArray[np.int64]
WIDTH = 256  # of a projected token
GROUPS: dict[str, slice] = {}
for _name, _count in (
    ("kind", len(CLASSES)),
    ("colour", 9),
    ("size", 3),
    ("x", GRID),
    ("y", GRID),
    ("ground", 4),
    ("order", 5),
    ("twins", 7),
    ("kin", 7),
    ("hue", 7),
    ("total", 7),
):
    _start = max((part.stop for part in GROUPS.values()), default=0)
    GROUPS[_name] = slice(_start, _start + _count)
CODE = GROUPS["total"].stop
TALLIES = ("twins", "kin", "hue", "total")
"""Shapes of the same class and colour, of the same class, of the same colour, in all; 1 to 7, nothing where none is."""
CHANNELS = ("kind", "colour", "size", "cover kind", "cover colour", "order", *TALLIES)
"""Rows of a scene's indices."""


def basis() -> Array:
    """(CODE, WIDTH) orthonormal rows, the same on every machine to rounding."""
    generator = np.random.Generator(np.random.PCG64(20))
    starts = [0, GROUPS["order"].start, GROUPS["twins"].start, CODE]  # additions leave what was before them as it was
    seeds = [generator.standard_normal((WIDTH, end - start)) for start, end in itertools.pairwise(starts)]
    q, r = np.linalg.qr(np.concatenate(seeds, axis=1))
    return np.ascontiguousarray((q * np.sign(np.diag(r))).T, dtype=np.float32)


def bins(values: Array) -> Array:
    """(n,) positions in 0..1 -> (n, GRID) weights of the two nearest bin centres."""
    place = np.clip(values * GRID - 0.5, 0, GRID - 1)
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(GRID)[None])).astype(np.float32)


def indices(scene: Scene) -> Ints:
    """(10, PATCHES), rows as in CHANNELS: 0 is nothing, places in a word and tallies count from 1."""
    out = np.zeros((len(CHANNELS), PATCHES), np.int64)
    middle = (np.arange(GRID) + 0.5) / GRID
    for item in scene.items:
        values = CLASS_INDEX[item.name], COLOUR_NAMES.index(item.colour) + 1
        inside_x, inside_y = np.abs(middle - item.x) < item.rx, np.abs(middle - item.y) < item.ry
        covered = (inside_y[:, None] & inside_x[None]).reshape(-1)
        out[3:5, covered] = np.array(values)[:, None]
        size = SIZES.index(item.size) + 1 if item.size else 0
        out[:5, item.cell] = (*values, size, *values)
    for number, char in enumerate(scene.chars, 1):
        out[5, char.cell] = number
    for item in scene.shapes:
        alike = ((item.colour, item.name), (None, item.name), (item.colour, None), (None, None))
        out[6:, item.cell] = [tally(scene, *pair) for pair in alike]
    return out


def positions(scene: Scene) -> Array:
    """(PATCHES, 2): x and y of the centre in the patch, or of the patch itself where there is none."""
    middle = (np.arange(GRID, dtype=np.float32) + 0.5) / GRID
    out = np.stack([np.tile(middle, GRID), np.repeat(middle, GRID)], axis=1)
    for item in scene.items:
        out[item.cell] = item.x, item.y
    return out


def ground(scene: Scene) -> int:
    """The background's index, -1 where it has no name."""
    return BACKGROUND_NAMES.index(scene.background) if scene.background else -1


def assemble(index: Ints, place: Array, grounds: Ints) -> Array:
    """Labels of many scenes, (n, 10, P), (n, P, 2) and (n,) -> their codes (n, P, CODE)."""
    count, patches = index.shape[0], index.shape[2]
    out = np.zeros((count, patches, CODE), np.float32)
    rows, cols = np.arange(count)[:, None], np.arange(patches)[None]
    for channel, name in ((0, "kind"), (1, "colour"), (2, "size"), (5, "order")):
        out[rows, cols, GROUPS[name].start + index[:, channel]] = 1
    for name in TALLIES:
        values = index[:, CHANNELS.index(name), :, None]
        out[:, :, GROUPS[name]] = values == np.arange(1, 8)
    for axis, name in enumerate("xy"):
        out[:, :, GROUPS[name]] = bins(place[:, :, axis].reshape(-1)).reshape(count, patches, GRID)
    out[:, :, GROUPS["ground"]] = (grounds[:, None] == np.arange(len(BACKGROUND_NAMES)))[:, None]
    return out


def code(scene: Scene) -> Array:
    """(PATCHES, CODE) for one scene."""
    return assemble(indices(scene)[None], positions(scene)[None], np.array([ground(scene)]))[0]
