"""Image processor of LLaVA-NeXT: the picture as one square tile, then as a grid of tiles that keeps its proportions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.anyres import best_resolution, fitted_size, without_margins
from mmserve.processors.interface import Expansion, Run
from mmserve.processors.pixels.patch_processor import ResizeSettings
from mmserve.processors.pixels.sources import Size
from mmserve.processors.pixels.tile_processor import Part, TileProcessor, TileSize, tower_of
from mmserve.processors.settings import load_settings

UNUSED = ("do_pad", "aspect_ratio_setting")
"""``do_pad`` makes batches of pictures with different numbers of tiles."""


class AnyResSettings(ResizeSettings, frozen=True, kw_only=True):
    """Fields of LlavaNextImageProcessor and LlavaOnevisionImageProcessor."""

    size: TileSize | int
    do_center_crop: bool
    crop_size: TileSize | int | None = None
    image_grid_pinpoints: tuple[tuple[int, int], ...]
    """(height, width) of each resolution."""

    def __post_init__(self) -> None:
        super().__post_init__()
        side = self.side
        if side < 1 or (self.do_center_crop and _side(self.crop_size) != side):
            raise ValueError("size and crop_size must be the same square")
        if not self.image_grid_pinpoints:
            raise ValueError("image_grid_pinpoints is empty")
        if any(edge < 1 or edge % side for resolution in self.image_grid_pinpoints for edge in resolution):
            raise ValueError(f"image_grid_pinpoints must be multiples of {side}")

    @property
    def side(self) -> int:
        """Of a tile in pixels."""
        return _side(self.size)


class LlavaNextSettings(AnyResSettings, frozen=True, kw_only=True):
    """Defaults of LlavaNextImageProcessor."""

    size: TileSize | int = TileSize(shortest_edge=224)
    do_center_crop: bool = True
    crop_size: TileSize | int | None = TileSize(height=224, width=224)
    image_grid_pinpoints: tuple[tuple[int, int], ...] = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


def processor(model: ModelSpec) -> LlavaNextProcessor:
    """Raises StartupError for settings that are unknown or do not fit the vision tower."""
    return LlavaNextProcessor(model, load_settings(model, LlavaNextSettings, unused=UNUSED))


class LlavaNextProcessor(TileProcessor):
    def __init__(self, model: ModelSpec, settings: AnyResSettings) -> None:
        """Raises StartupError for tiles that are not those of the vision tower."""
        tower = tower_of(model, settings.side)
        self._resolutions = [(width, height) for height, width in settings.image_grid_pinpoints]
        self._features_side = settings.side // tower.patch_size
        grids = [(width // tower.patch_size, height // tower.patch_size) for width, height in self._resolutions]
        self._rows = [self._features_side**2 + self._most_features(*grid) for grid in grids]
        """The most that a picture in each resolution has."""
        super().__init__(
            settings,
            side=settings.side,
            placeholder=model.image_token,
            row_token=model.image_token,
            max_rows=max(self._rows),
        )

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """The smaller resolutions."""
        kept = [
            (height, width) for (width, height), most in zip(self._resolutions, self._rows, strict=True) if most <= rows
        ]
        return {"image_grid_pinpoints": kept} if kept else None

    def parts(self, width: int, height: int) -> Sequence[Part]:
        """The whole picture without its proportions, then the grid."""
        resolution = best_resolution(width, height, self._resolutions)
        columns, rows = resolution[0] // self._side, resolution[1] // self._side
        return Part((self._side, self._side)), Part(fitted_size(width, height, resolution), columns, rows)

    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """Two: (1, rows, columns) of tiles, and of their features that are not of the margins."""
        grid = self.parts(width, height)[1]
        columns, rows = self.inner_features(width, height)
        return (1, grid.rows, grid.columns), (1, rows, columns)

    def inner_features(self, width: int, height: int) -> Size:
        """(columns, rows) of the grid's features that are not of the margins."""
        grid = self.parts(width, height)[1]
        return without_margins(width, height, (grid.columns * self._features_side, grid.rows * self._features_side))

    def features(self, width: int, height: int) -> Size:
        """(columns, rows) of the grid's features that become rows of the language model."""
        return self.inner_features(width, height)

    def expand(self, width: int, height: int) -> Expansion:
        """One run: the whole picture, then each line of features and the row that ends it."""
        columns, rows = self.features(width, height)
        num_rows = self._features_side**2 + (columns + 1) * rows
        return Expansion(self.row_token, (Run(num_rows, (1, 1, num_rows)),))

    def _most_features(self, columns: int, rows: int) -> int:
        """Of a grid of so many features, with the ends of lines."""
        return (columns + 1) * rows


def _side(size: TileSize | int | None) -> int:
    """Of a square in pixels; 0 for another shape."""
    return size.side if isinstance(size, TileSize) else size or 0
