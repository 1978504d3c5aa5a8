"""Carries out the plan of a picture's views on a device (``processors.pixels.view_plan``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.model_backend.pictures.resize import PictureResize
from mmserve.processors.pixels.sources import Size
from mmserve.processors.pixels.view_plan import Cut, Resizing, ViewPlan


def planned_views(picture: torch.Tensor, plan: ViewPlan, resize: PictureResize) -> torch.Tensor:
    """uint8 [height, width, 3] of the device -> [tiles, height, width, 3]. Does not wait for the device."""
    pictures = [picture]
    for step in plan.resizings:
        source = _source(pictures[step.source], step, plan.background)
        pictures.append(resize(source, step.size, plan.resample))
    tiles = [_tiles(pictures[cut.source], cut, plan.tile) for cut in plan.cuts]
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def _source(picture: torch.Tensor, step: Resizing, colour: Sequence[int]) -> torch.Tensor:
    if step.canvas:
        height, width, _ = picture.shape
        left, top = (step.canvas[0] - width) // 2, (step.canvas[1] - height) // 2
        return _laid(picture, step.canvas, left, top, colour)
    if step.box is None:
        return picture
    left, top, right, bottom = step.box
    return picture[top:bottom, left:right]


def _tiles(picture: torch.Tensor, cut: Cut, tile: Size) -> torch.Tensor:
    """[tiles, height, width, 3], row by row."""
    width, height = tile
    grid = _laid(picture, (width * cut.columns, height * cut.rows), -cut.left, -cut.top, (0, 0, 0))
    return grid.view(cut.rows, height, cut.columns, width, 3).transpose(1, 2).reshape(-1, height, width, 3)


def _laid(picture: torch.Tensor, size: Size, left: int, top: int, colour: Sequence[int]) -> torch.Tensor:
    """A canvas with the picture's corner there, which may be outside: what does not fit is left out."""
    (height, width, _), (to_width, to_height) = picture.shape, size
    if (left, top, width, height) == (0, 0, to_width, to_height):
        return picture
    canvas = torch.empty(to_height, to_width, 3, dtype=picture.dtype, device=picture.device)
    for channel, value in enumerate(colour):
        canvas[..., channel] = value
    rows, columns = slice(max(top, 0), min(top + height, to_height)), slice(max(left, 0), min(left + width, to_width))
    canvas[rows, columns] = picture[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    return canvas
