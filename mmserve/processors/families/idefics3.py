"""Image processor of Idefics3, SmolVLM and SmolVLM2: tiles of the enlarged or reduced picture, then the whole picture.

A picture is resized to its final length, then to whole tiles; the whole picture is made from the latter. Each step
rounds to bytes, as in transformers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from PIL import Image

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.interface import Expansion, ImageProcessor, PixelForm, Run
from mmserve.processors.pixels.patch_processor import ResizeSettings
from mmserve.processors.pixels.sources import Size
from mmserve.processors.pixels.tile_grids import first_size, whole_tiles
from mmserve.processors.pixels.tile_processor import tower_of
from mmserve.processors.pixels.values import channel_values
from mmserve.processors.pixels.view_plan import Cut, Resizing, ViewPlan
from mmserve.processors.pixels.views import PlannedViews
from mmserve.processors.settings import changeable, load_settings

_FAKE, _GLOBAL = "<fake_token_around_image>", "<global-img>"
_UNUSED = ("do_pad", "return_row_col_info", "video_sampling")


class LongestEdge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    longest_edge: int

    def __post_init__(self) -> None:
        if self.longest_edge < 1:
            raise ValueError("longest_edge must be at least 1")


class Idefics3Settings(ResizeSettings, frozen=True, kw_only=True):
    """Fields and defaults of Idefics3ImageProcessor."""

    resample: Image.Resampling = Image.Resampling.LANCZOS
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    size: LongestEdge = LongestEdge(longest_edge=4 * 364)
    max_image_size: LongestEdge = LongestEdge(longest_edge=364)
    """Of a tile."""
    do_image_splitting: bool = True


class Layout(NamedTuple):
    """How a picture becomes tiles. Without rows and columns, it is one tile."""

    first: Size
    """Of the first resizing."""
    tiled: Size
    """Of the second."""
    rows: int
    columns: int

    @property
    def num_tiles(self) -> int:
        """The tile of the whole picture included."""
        return self.rows * self.columns + 1


def processor(model: ModelSpec) -> Idefics3Processor:
    """Raises StartupError for settings that are unknown or do not fit the vision tower."""
    return Idefics3Processor(model, load_settings(model, Idefics3Settings, unused=_UNUSED))


class Idefics3Processor(PlannedViews):
    def __init__(self, model: ModelSpec, settings: Idefics3Settings) -> None:
        """Raises StartupError for tiles that are not those of the vision tower."""
        self._settings, self._side = settings, settings.max_image_size.longest_edge
        tower = tower_of(model, self._side)
        rows = (self._side // tower.patch_size) ** 2 // tower.patches_per_row
        self._tile = Run(rows, (1, math.isqrt(rows), math.isqrt(rows)))
        self.form = PixelForm(channel_values(settings))
        self.placeholder = self.row_token = model.image_token
        self.request_options = changeable(Idefics3Settings)
        self.max_rows = self._tile.rows * self.layout(1, 1).num_tiles

    def layout(self, width: int, height: int) -> Layout:
        """Of an upright picture of this size. A square has the most tiles."""
        side = self._side
        first = first_size(width, height, self._settings.size.longest_edge)
        if not self._settings.do_image_splitting:
            return Layout(first, (side, side), 0, 0)
        tiled = whole_tiles(*first, side)
        if tiled == (side, side):
            return Layout(first, tiled, 0, 0)
        return Layout(first, tiled, tiled[1] // side, tiled[0] // side)

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """Fewer tiles a side."""
        tiles = rows // self._tile.rows
        if not tiles:
            return None
        return {"size": {"longest_edge": self._side * max(1, math.isqrt(tiles - 1))}}

    def among(self, count: int) -> ImageProcessor:
        return self

    def expand(self, width: int, height: int) -> Expansion:
        """A run for each tile, which is named by its row and column."""
        layout = self.layout(width, height)
        lines = [
            "".join(f"{_FAKE}<row_{row + 1}_col_{column + 1}>{self.row_token}" for column in range(layout.columns))
            for row in range(layout.rows)
        ]
        before = "".join(f"{line}\n" for line in lines) + ("\n" if lines else "")
        return Expansion(f"{before}{_FAKE}{_GLOBAL}{self.row_token}{_FAKE}", (self._tile,) * layout.num_tiles)

    def plan(self, width: int, height: int) -> ViewPlan:
        """Tiles [k, side, side, 3] row by row, the whole picture last."""
        layout, tile = self.layout(width, height), (self._side, self._side)
        tiles = (Cut(2, columns=layout.columns, rows=layout.rows),) if layout.rows else ()
        return ViewPlan(
            (width, height),
            (Resizing(0, layout.first), Resizing(1, layout.tiled), Resizing(2, tile)),
            (*tiles, Cut(3)),
            tile,
            self._settings.resample,
        )

    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """One: of the tiles without that of the whole picture."""
        layout = self.layout(width, height)
        return ((1, layout.rows, layout.columns),)

    def settings_digest(self) -> bytes:
        """See ``ImageProcessor``."""
        return hashlib.sha256(b"idefics3-1\0" + msgspec.json.encode(self._settings)).digest()
