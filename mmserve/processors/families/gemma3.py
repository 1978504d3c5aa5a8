"""Image processor of Gemma 3: the picture as one square; crops of it as well if pan and scan is switched on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.interface import Expansion, Run
from mmserve.processors.pixels.patch_processor import ResizeSettings
from mmserve.processors.pixels.sources import Box
from mmserve.processors.pixels.tile_processor import Part, TileProcessor, TileSize, tower_of
from mmserve.processors.settings import load_settings

_BEGIN, _END = "<start_of_image>", "<end_of_image>"
_UNUSED = ("image_seq_length",)
"""config.json says how many rows a view has."""


class Gemma3Settings(ResizeSettings, frozen=True, kw_only=True):
    """Fields of Gemma3ImageProcessor, with its defaults and those of Gemma3Processor for pan and scan."""

    resample: Image.Resampling = Image.Resampling.BILINEAR
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    size: TileSize = TileSize(height=224, width=224)
    do_pan_and_scan: bool = False
    pan_and_scan_min_crop_size: int = 256
    pan_and_scan_max_num_crops: int = 4
    pan_and_scan_min_ratio_to_activate: float = 1.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pan_and_scan_min_crop_size < 1 or self.pan_and_scan_max_num_crops < 1:
            raise ValueError("pan and scan needs crops of at least one pixel, and at least one crop")


def processor(model: ModelSpec) -> Gemma3Processor:
    """Raises StartupError for settings that are unknown or do not fit the vision tower."""
    return Gemma3Processor(model, load_settings(model, Gemma3Settings, unused=_UNUSED))


class Gemma3Processor(TileProcessor):
    def __init__(self, model: ModelSpec, settings: Gemma3Settings) -> None:
        """Raises StartupError for pictures that are not those of the vision tower."""
        side = settings.size.side
        tower = tower_of(model, side)
        self._pan_and_scan = settings
        self._view_rows = (side // tower.patch_size) ** 2 // tower.patches_per_row
        most_views = 1 + (settings.pan_and_scan_max_num_crops if settings.do_pan_and_scan else 0)
        super().__init__(
            settings,
            side=side,
            placeholder=_BEGIN,
            row_token=model.image_token,
            max_rows=self._view_rows * most_views,
        )

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """Fewer crops, or none."""
        views = rows // self._view_rows
        if views < 2:
            return {"do_pan_and_scan": False} if views else None
        return {"pan_and_scan_max_num_crops": views - 1}

    def parts(self, width: int, height: int) -> Sequence[Part]:
        """The picture, then its crops."""
        square = (self._side, self._side)
        return [Part(square), *(Part(square, box=box) for box in crops(self._pan_and_scan, width, height))]

    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """One for each view."""
        return [(1, 1, 1) for _ in self.parts(width, height)]

    def expand(self, width: int, height: int) -> Expansion:
        """A run for each view, between blank lines."""
        num_crops = len(self.parts(width, height)) - 1
        view = f"\n\n{_BEGIN}{self.row_token}{_END}\n\n"
        text = view
        if num_crops:
            crop_views = " ".join([view] * num_crops)
            text = f"Here is the original image {view} and here are some crops to help you see better {crop_views}"
        return Expansion(text, (Run(self._view_rows, (1, 1, self._view_rows)),) * (1 + num_crops))


def crops(settings: Gemma3Settings, width: int, height: int) -> list[Box]:
    """Where pan and scan cuts a picture: nearly squares, side by side along the longer side. As in transformers."""
    long, short = max(width, height), min(width, height)
    smallest = settings.pan_and_scan_min_crop_size
    if not settings.do_pan_and_scan or long / short < settings.pan_and_scan_min_ratio_to_activate:
        return []
    number = min(long // smallest, math.floor(long / short + 0.5))
    number = min(settings.pan_and_scan_max_num_crops, max(2, number))
    length = math.ceil(long / number)
    if min(length, short) < smallest:
        return []
    along = [(start, min(start + length, long)) for start in range(0, long, length)]
    if width >= height:
        return [(start, 0, end, height) for start, end in along]
    return [(0, start, width, end) for start, end in along]
