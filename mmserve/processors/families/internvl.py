"""Image processor of InternVL 3 and 3.5: a grid of square tiles with nearly the picture's proportions, and a thumbnail.

Repositories in transformers' format (``-hf``) have the settings of GotOcr2ImageProcessor. Native ones have them in
config.json, and write another placeholder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.files import read_json
from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.interface import Expansion, Run
from mmserve.processors.pixels.patch_processor import ResizeSettings
from mmserve.processors.pixels.tile_grids import best_grid, tile_grids
from mmserve.processors.pixels.tile_processor import Part, TileProcessor, TileSize, image_size, tower_of
from mmserve.processors.settings import SettingsRefused, changed_settings, load_settings

_BEGIN, _END = "<img>", "</img>"
_NATIVE_PLACEHOLDER = "<image>"
_UNUSED = ("crop_to_patches",)
"""transformers' processor always asks for tiles, whatever the stored setting says."""
_NATIVE_NAMES = {
    "min_dynamic_patch": "min_patches",
    "max_dynamic_patch": "max_patches",
    "dynamic_image_size": "crop_to_patches",
}
"""Of native repositories: a setting's name there -> its name in transformers. Both may be used."""
_MOST_TILES = 1024
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of native repositories, whose code does not read preprocessor_config.json."""


class InternVlSettings(ResizeSettings, frozen=True, kw_only=True):
    """Fields of GotOcr2ImageProcessor, and ``use_thumbnail`` of native repositories."""

    size: TileSize = TileSize(height=384, width=384)
    crop_to_patches: bool = True
    min_patches: int = 1
    max_patches: int = 12
    use_thumbnail: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_patches <= self.max_patches <= _MOST_TILES:
            raise ValueError(f"min_patches and max_patches make no sense, or are more than {_MOST_TILES}")

    @property
    def most_tiles(self) -> int:
        """Without the thumbnail."""
        return self.max_patches if self.crop_to_patches else 1


class NativeConfig(msgspec.Struct, kw_only=True):
    """What config.json of a native repository says about pictures."""

    dynamic_image_size: bool = True
    use_thumbnail: bool = True
    min_dynamic_patch: int = 1
    max_dynamic_patch: int = 12


def processor(model: ModelSpec) -> InternVlProcessor:
    """Raises StartupError for settings that are unknown or do not fit the vision tower."""
    if model.family == "internvl_chat":
        return InternVlProcessor(model, _native_settings(model), _NATIVE_PLACEHOLDER)
    return InternVlProcessor(model, load_settings(model, InternVlSettings, unused=_UNUSED), model.image_token)


class InternVlProcessor(TileProcessor):
    def __init__(self, model: ModelSpec, settings: InternVlSettings, placeholder: str) -> None:
        """Raises StartupError for tiles that are not those of the vision tower."""
        side = settings.size.side
        tower = tower_of(model, side)
        most = settings.most_tiles
        self._thumbnail = settings.use_thumbnail and most > 1
        self._tile_rows = (side // tower.patch_size) ** 2 // tower.patches_per_row
        self._grids = tile_grids(min(settings.min_patches, most), most)
        super().__init__(
            settings,
            side=side,
            placeholder=placeholder,
            row_token=model.image_token,
            max_rows=self._tile_rows * (most + self._thumbnail),
        )
        if model.family == "internvl_chat":
            self.request_options |= _NATIVE_NAMES.keys()

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """Fewer tiles."""
        tiles = rows // self._tile_rows
        if not tiles:
            return None
        most = max(1, tiles - self._thumbnail)
        return {"max_patches": most, "min_patches": min(most, self._grids[0].columns * self._grids[0].rows)}

    def parts(self, width: int, height: int) -> Sequence[Part]:
        """The tiles, then the thumbnail."""
        grid, side = best_grid(width, height, self._grids, self._side), self._side
        tiles = Part((side * grid.columns, side * grid.rows), grid.columns, grid.rows)
        return (tiles, Part((side, side))) if self._thumbnail and tiles.num_tiles > 1 else (tiles,)

    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """One: of the tiles without the thumbnail."""
        tiles = self.parts(width, height)[0]
        return ((1, tiles.rows, tiles.columns),)

    def expand(self, width: int, height: int) -> Expansion:
        """One run between two tokens."""
        rows = self._tile_rows * sum(part.num_tiles for part in self.parts(width, height))
        return Expansion(f"{_BEGIN}{self.row_token}{_END}", (Run(rows, (1, 1, rows)),))


def _native_settings(model: ModelSpec) -> InternVlSettings:
    native = convert(read_json(Path(model.path) / "config.json") or {}, NativeConfig)
    stored = {
        "size": {"shortest_edge": image_size(model)},
        "crop_to_patches": native.dynamic_image_size,
        "min_patches": native.min_dynamic_patch,
        "max_patches": native.max_dynamic_patch,
        "use_thumbnail": native.use_thumbnail,
        "image_mean": _IMAGENET_MEAN,
        "image_std": _IMAGENET_STD,
    }
    options = {_NATIVE_NAMES.get(name, name): value for name, value in model.processor_options.items()}
    if len(options) < len(model.processor_options):
        reason = f"a setting is given under two names: {', '.join(model.processor_options)}"
        raise SettingsRefused(f"--mm-processor-kwargs: {reason}", reason)
    return changed_settings(replace(model, processor_options=options), InternVlSettings, stored)
