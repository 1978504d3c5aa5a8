"""Arithmetic of square tiles: the grid that a picture is resized to. Sizes are those of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mmserve.processors.pixels.sources import Size

_LONGEST_EDGE = 4096
"""Of a picture that Idefics3 resizes, whatever the settings say."""


class TileGrid(NamedTuple):
    columns: int
    rows: int


def best_grid(width: int, height: int, grids: Sequence[TileGrid], side: int) -> TileGrid:
    """The grid whose proportions are nearest to the picture's.

    Of equally near ones, the last that the picture fills by more than half. As ``get_optimal_tiled_canvas`` of
    transformers.
    """
    best, nearest = TileGrid(1, 1), float("inf")
    for grid in grids:
        distance = abs(width / height - grid.columns / grid.rows)
        fills = width * height > 0.5 * side * side * grid.columns * grid.rows
        if distance < nearest or (distance == nearest and fills):
            best, nearest = grid, distance
    return best


def tile_grids(fewest: int, most: int) -> list[TileGrid]:
    """All grids of so many tiles, smaller ones first."""
    grids = [
        TileGrid(columns, rows)
        for columns in range(1, most + 1)
        for rows in range(-(-fewest // columns), most // columns + 1)
    ]
    return sorted(grids, key=lambda grid: grid.columns * grid.rows)


def first_size(width: int, height: int, longest_edge: int) -> Size:
    """The picture with a longer side of ``longest_edge``, also if it has to be enlarged; the shorter one is even.

    At most _LONGEST_EDGE a side, and at least 1.
    """
    ratio = width / height
    if width >= height:
        width, height = longest_edge, _even(longest_edge / ratio)
    else:
        width, height = _even(longest_edge * ratio), longest_edge
    width, height = max(1, width), max(1, height)
    ratio = width / height
    if width >= height and width > _LONGEST_EDGE:
        width, height = _LONGEST_EDGE, int(_LONGEST_EDGE / ratio)
    elif height > width and height > _LONGEST_EDGE:
        width, height = int(_LONGEST_EDGE * ratio), _LONGEST_EDGE
    return max(1, width), max(1, height)


def whole_tiles(width: int, height: int, side: int) -> Size:
    """The longer side rounded up to whole tiles, the other one in proportion and then rounded up."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return width, math.ceil(max(1, int(width / ratio)) / side) * side
    height = math.ceil(height / side) * side
    return math.ceil(max(1, int(height * ratio)) / side) * side, height


def _even(length: float) -> int:
    return int(length) + int(length) % 2
