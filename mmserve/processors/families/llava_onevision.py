"""Image processor of LLaVA-OneVision: LLaVA-NeXT's, with a limit for the features of large grids.

Where a request has several pictures, each of them is one tile: the picture on a square of the mean colour.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from mmserve.checkpoint.files import read_json
from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.anyres import SHRINKING, shrunk
from mmserve.processors.families.llava_next import UNUSED, AnyResSettings, LlavaNextProcessor
from mmserve.processors.interface import Expansion, ImageProcessor, Run
from mmserve.processors.pixels.resizing import check_working_pixels
from mmserve.processors.pixels.sources import Size
from mmserve.processors.pixels.tile_processor import Part, TileProcessor, TileSize
from mmserve.processors.settings import load_settings
from mmserve.runtime.errors import StartupError

_SIDES = (384, 768, 1152, 1536, 1920, 2304)


class LlavaOneVisionSettings(AnyResSettings, frozen=True, kw_only=True):
    """Defaults of LlavaOnevisionImageProcessor."""

    size: TileSize | int = TileSize(height=384, width=384)
    do_center_crop: bool = False
    image_grid_pinpoints: tuple[tuple[int, int], ...] = tuple(product(_SIDES, _SIDES))


def processor(model: ModelSpec) -> LlavaOneVisionProcessor:
    """Raises StartupError for settings that are unknown or do not fit the vision tower."""
    ratio = (read_json(Path(model.path) / "config.json") or {}).get("vision_aspect_ratio", "anyres_max_9")
    found = re.fullmatch(r"anyres_max_([1-9]\d*)", str(ratio))
    if found is None:
        raise StartupError(f"{model.path}: vision_aspect_ratio {ratio!r} is not supported")
    settings = load_settings(model, LlavaOneVisionSettings, unused=UNUSED)
    return LlavaOneVisionProcessor(model, settings, max_tiles=int(found[1]))


class LlavaOneVisionProcessor(LlavaNextProcessor):
    def __init__(self, model: ModelSpec, settings: AnyResSettings, *, max_tiles: int) -> None:
        """``max_tiles``: a grid with more features than those of so many tiles is shrunk."""
        self._max_tiles = max_tiles
        super().__init__(model, settings)
        self._several = OneTileProcessor(self, settings, features_side=self._features_side)

    def among(self, count: int) -> ImageProcessor:
        return self if count == 1 else self._several

    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """Those of LLaVA-NeXT, then (1, rows, columns) of the features after shrinking."""
        columns, rows = self.features(width, height)
        return *super().grids(width, height), (1, rows, columns)

    def features(self, width: int, height: int) -> Size:
        """(columns, rows) of the grid's features that become rows of the language model."""
        return shrunk(self.inner_features(width, height), self._max_tiles * self._features_side**2)

    def _most_features(self, columns: int, rows: int) -> int:
        """Of a grid of so many features, with the ends of lines: an upper bound."""
        return min(columns * rows, math.floor(SHRINKING**2 * self._max_tiles * self._features_side**2)) + rows


class OneTileProcessor(TileProcessor):
    """For pictures of a request with several. A picture's rows are those of its tile, and one that ends the line."""

    def __init__(self, alone: LlavaOneVisionProcessor, settings: AnyResSettings, *, features_side: int) -> None:
        """``alone``: for the only picture of a request. ``features_side``: features in a line of a tile."""
        super().__init__(
            settings,
            side=settings.side,
            placeholder=alone.placeholder,
            row_token=alone.row_token,
            max_rows=features_side**2 + 1,
        )

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """No setting makes the tile smaller."""
        return None

    def parts(self, width: int, height: int) -> Sequence[Part]:
        """One. Raises MediaError for a picture that is too long for a square around it."""
        edge = max(width, height)
        check_working_pixels((edge, edge))
        return (Part((self._side, self._side), canvas=(edge, edge)),)

    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """One, without tiles beside that of the whole picture."""
        return ((1, 0, 0),)

    def expand(self, width: int, height: int) -> Expansion:
        """One run. Raises MediaError."""
        self.parts(width, height)
        return Expansion(self.row_token, (Run(self.max_rows, (1, 1, self.max_rows)),))
