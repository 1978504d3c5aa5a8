"""Qwen's choice of size: whole rows, an area within limits, the aspect ratio nearly kept.

The arithmetic is that of ``smart_resize`` in transformers, with Python's rounding of halves to even.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from typing import Any

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.pixels.patch_processor import Patches, PatchProcessor, ResizeSettings
from mmserve.processors.pixels.sources import Size
from mmserve.runtime.errors import MediaError, StartupError

MAX_RATIO = 200
"""Of the longer side to the shorter one."""


class AreaLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``size`` of the settings, in pixels of area, not of edges. Old checkpoints use the last two names."""

    shortest_edge: int | None = None
    longest_edge: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None


class SmartResizeSettings(ResizeSettings, frozen=True, kw_only=True):
    """Fields of Qwen2VLImageProcessor. ``min_pixels`` and ``max_pixels`` are old names, and win over ``size``."""

    size: AreaLimits
    min_pixels: int | None = None
    max_pixels: int | None = None
    patch_size: int = 14
    temporal_patch_size: int
    merge_size: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        smallest, largest = self.area
        if not 1 <= smallest <= largest:
            raise ValueError(f"limits of {smallest} and {largest} pixels make no sense")

    @property
    def area(self) -> tuple[int, int]:
        """Fewest and most pixels of a resized picture. Raises ValueError if one is missing."""
        smallest = self.min_pixels or self.size.shortest_edge or self.size.min_pixels
        largest = self.max_pixels or self.size.longest_edge or self.size.max_pixels
        if smallest is None or largest is None:
            raise ValueError("size needs shortest_edge and longest_edge")
        return smallest, largest


class SmartResizeProcessor(PatchProcessor):
    """Serves Qwen's families and those that took over its image processor."""

    def __init__(self, model: ModelSpec, settings: SmartResizeSettings, *, in_blocks: bool) -> None:
        """Raises StartupError for settings that do not fit the vision tower."""
        assert model.vision is not None
        tower = model.vision
        if (settings.patch_size, settings.merge_size**2) != (tower.patch_size, tower.patches_per_row):
            raise StartupError(
                f"{model.path}: the image processor makes patches of {settings.patch_size} pixels and merges "
                f"{settings.merge_size**2}; the vision tower takes {tower.patch_size} and {tower.patches_per_row}"
            )
        frames = getattr(tower, "temporal_patch_size", settings.temporal_patch_size)
        if settings.temporal_patch_size != frames:
            raise StartupError(
                f"{model.path}: the image processor makes patches of {settings.temporal_patch_size} frames, the vision "
                f"tower takes {frames}"
            )
        patches = Patches(settings.patch_size, settings.merge_size, in_blocks, settings.temporal_patch_size)
        self._area = settings.area
        super().__init__(
            settings, patches, row_token=model.image_token, max_rows=most_rows(patches.row_side, *self._area)
        )

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """The largest area that keeps to ``rows``."""
        row_area = self._patches.row_side**2

        def limits(most: int) -> tuple[int, int]:
            return min(self._area[0], most * row_area), most * row_area

        fitting = bisect(range(1, rows + 1), rows, key=lambda most: most_rows(self._patches.row_side, *limits(most)))
        if not fitting:
            return None
        smallest, largest = limits(fitting)
        return {"size": {"shortest_edge": smallest, "longest_edge": largest}}

    def resized_size(self, width: int, height: int) -> Size:
        """Raises MediaError for a picture that is more than MAX_RATIO times as long as wide."""
        return smart_size(width, height, self._patches.row_side, *self._area)


def smart_size(width: int, height: int, factor: int, smallest: int, largest: int) -> Size:
    """Sides that are multiples of ``factor``, with an area from ``smallest`` to about ``largest`` pixels.

    Raises MediaError for a picture that is more than MAX_RATIO times as long as wide.
    """
    if max(width, height) / min(width, height) > MAX_RATIO:
        raise MediaError(f"the image is more than {MAX_RATIO} times as long as wide, which this model does not take")
    rounded = round(width / factor) * factor, round(height / factor) * factor
    if rounded[0] * rounded[1] > largest:
        shrinking = math.sqrt(height * width / largest)
        return (
            max(factor, math.floor(width / shrinking / factor) * factor),
            max(factor, math.floor(height / shrinking / factor) * factor),
        )
    if rounded[0] * rounded[1] < smallest:
        growth = math.sqrt(smallest / (height * width))
        return math.ceil(width * growth / factor) * factor, math.ceil(height * growth / factor) * factor
    return rounded


def most_rows(factor: int, smallest: int, largest: int) -> int:
    """An upper bound of the rows of ``smart_size``: by area, of a long picture shrunk, and of one enlarged."""
    shrunk = math.isqrt(MAX_RATIO * largest) // factor
    least = smallest / factor**2
    enlarged = math.floor(least + math.sqrt(least) * (math.sqrt(MAX_RATIO) + 1) + 1)
    return max(largest // factor**2, shrunk, enlarged)
