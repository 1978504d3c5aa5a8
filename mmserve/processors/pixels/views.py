"""Views of a picture by Pillow, or the picture itself for a device that makes them; and the memory that both take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from mmserve.processors.image_files.picture import decode
from mmserve.processors.image_files.upright import UprightPicture
from mmserve.processors.interface import Views
from mmserve.processors.pixels.resizing import FIXED_NBYTES, band_nbytes, resized, working_nbytes
from mmserve.processors.pixels.sources import Canvas, Crop, Source
from mmserve.processors.pixels.values import RGB, Bytes, fill, fill_from
from mmserve.processors.pixels.view_plan import Cut, Resizing, ViewPlan

_PIXEL_NBYTES = 4
"""Of Pillow's RGB."""


class PlannedViews(ABC):
    """Part of the image processor of a family that says what its views are by a plan. Of upright pictures."""

    @abstractmethod
    def plan(self, width: int, height: int) -> ViewPlan:
        """Raises MediaError."""

    @abstractmethod
    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """``Views.grids``. Raises MediaError."""

    def views(self, data: bytes | memoryview, *, whole: bool = False) -> Views:
        """See ``ImageProcessor``. Raises MediaError."""
        picture = decode(data)
        plan, grids = self.plan(*picture.size), np.array(self.grids(*picture.size), np.int32)
        if whole and plan.can_go_whole:
            return Views(_whole(picture), grids, plan)
        pictures: list[Source | None] = [picture]
        del picture
        return Views(_by_pillow(pictures, plan), grids)

    def decoded_nbytes(self, width: int, height: int, loading_nbytes: int, *, whole: bool = False) -> int:
        """See ``ImageProcessor``. Raises MediaError."""
        return peak_nbytes(loading_nbytes, self.plan(width, height), whole=whole)


def peak_nbytes(loading_nbytes: int, plan: ViewPlan, *, whole: bool = False) -> int:
    """Estimated peak memory of loading a picture and making its views, or its bytes if it may go ``whole``.

    ``loading_nbytes``: of the decoder, the decoded picture included. The output is counted in addition to all that is
    resized, because the allocator keeps most of what was freed before. Raises MediaError.
    """
    peak, kept = 0, 0
    for number, step in enumerate(plan.resizings, 1):
        peak = max(peak, kept + working_nbytes(plan.source_size(step), step.size))
        freed = [plan.resizings[source - 1].size for source in plan.read_last_by(number) if source]
        kept += _PIXEL_NBYTES * (_area(step.size) - sum(map(_area, freed)))
    most = peak + plan.nbytes
    if whole and plan.can_go_whole:
        # Its decoding may fall to the CPU all the same, as that of a suspect does.
        most = max(most, plan.whole_nbytes + band_nbytes(plan.size[0]))
    return loading_nbytes + most + FIXED_NBYTES


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _whole(picture: Source) -> Bytes:
    width, height = picture.size
    pixels = np.empty((1, height, width, RGB), np.uint8)
    fill_from(pixels[0], picture)
    return pixels


def _by_pillow(pictures: list[Source | None], plan: ViewPlan) -> Bytes:
    """``pictures``: the decoded one; those that nothing reads any more leave the list, so that they are freed."""
    for number, step in enumerate(plan.resizings, 1):
        source = _source(pictures[step.source], step, plan)
        pictures.append(UprightPicture(resized(source, step.size, plan.resample)))
        del source
        for done in plan.read_last_by(number):
            pictures[done] = None
    width, height = plan.tile
    tiles, first = np.empty((plan.num_tiles, height, width, RGB), np.uint8), 0
    for cut in plan.cuts:
        picture = pictures[cut.source]
        assert picture is not None, "freed too early"
        assert picture.plain is not None, "resizing makes RGB"
        for index in range(cut.rows * cut.columns):
            left, top = _corner(cut, index, plan)
            fill(tiles[first + index], picture.plain, left=left, top=top)
        first += cut.rows * cut.columns
    return tiles


def _corner(cut: Cut, index: int, plan: ViewPlan) -> tuple[int, int]:
    row, column = divmod(index, cut.columns)
    return cut.left + plan.tile[0] * column, cut.top + plan.tile[1] * row


def _source(picture: Source | None, step: Resizing, plan: ViewPlan) -> Source:
    assert picture is not None, "freed too early"
    if step.canvas:
        return Canvas(picture, step.canvas, plan.background)
    return Crop(picture, step.box) if step.box else picture
