"""Image processing for towers that read square tiles: parts of a picture, each resized and cut into tiles."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.tower import TowerSpec
from mmserve.processors.interface import Expansion, ImageProcessor, PixelForm
from mmserve.processors.pixels.patch_processor import ResizeSettings
from mmserve.processors.pixels.sources import Box, Size
from mmserve.processors.pixels.values import background, channel_values
from mmserve.processors.pixels.view_plan import Cut, Resizing, ViewPlan
from mmserve.processors.pixels.views import PlannedViews
from mmserve.processors.settings import changeable
from mmserve.runtime.errors import StartupError


class TileSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``size`` or ``crop_size`` of the settings, in pixels."""

    height: int | None = None
    width: int | None = None
    shortest_edge: int | None = None

    @property
    def side(self) -> int:
        """Of a square; 0 for another shape."""
        if self.shortest_edge:
            return self.shortest_edge
        return self.height or 0 if self.height == self.width else 0


class Part(NamedTuple):
    """A part of a picture, resized, in the middle of a grid of tiles. What it does not cover is black."""

    size: Size
    columns: int = 1
    rows: int = 1
    box: Box | None = None
    """Where in the picture; None: all of it."""
    canvas: Size | None = None
    """Of a canvas of the mean colour that the whole picture is laid on; None: there is none."""

    @property
    def num_tiles(self) -> int:
        return self.columns * self.rows


class TileProcessor(PlannedViews):
    """Makes tiles of one size. A family says of which parts, and what the text is."""

    def __init__(self, settings: ResizeSettings, *, side: int, placeholder: str, row_token: str, max_rows: int) -> None:
        """``side``: of a tile in pixels."""
        self.placeholder = placeholder
        self.row_token = row_token
        self.max_rows = max_rows
        self.request_options = changeable(type(settings))
        self._settings = settings
        self._side = side
        self.form = PixelForm(channel_values(settings))

    @abstractmethod
    def parts(self, width: int, height: int) -> Sequence[Part]:
        """Of a picture of this size, in the order of their tiles. Raises MediaError."""

    @abstractmethod
    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """``Views.grids`` of a picture of this size. Raises MediaError."""

    @abstractmethod
    def expand(self, width: int, height: int) -> Expansion: ...

    @abstractmethod
    def within(self, rows: int) -> Mapping[str, Any] | None: ...

    def among(self, count: int) -> ImageProcessor:
        return self

    def plan(self, width: int, height: int) -> ViewPlan:
        """Tiles [k, side, side, 3], those of a part row by row. Raises MediaError."""
        parts, settings = self.parts(width, height), self._settings
        return ViewPlan(
            (width, height),
            tuple(Resizing(0, part.size, part.box, part.canvas) for part in parts),
            tuple(self._cut(number, part) for number, part in enumerate(parts, 1)),
            (self._side, self._side),
            settings.resample,
            background(settings),
        )

    def settings_digest(self) -> bytes:
        """See ``ImageProcessor``."""
        name = f"{type(self).__name__}-1 {self._side}\0"
        return hashlib.sha256(name.encode() + msgspec.json.encode(self._settings)).digest()

    def _cut(self, number: int, part: Part) -> Cut:
        left, top = (self._side * part.columns - part.size[0]) // 2, (self._side * part.rows - part.size[1]) // 2
        return Cut(number, -left, -top, part.columns, part.rows)


def image_size(model: ModelSpec) -> int:
    """Side in pixels of the tiles that the vision tower takes; 0 for one that takes pictures of any size."""
    return getattr(model.vision, "image_size", 0)


def tower_of(model: ModelSpec, side: int) -> TowerSpec:
    """The vision tower. Raises StartupError if it does not take tiles of ``side`` pixels."""
    assert model.vision is not None
    if side != (taken := image_size(model)):
        raise StartupError(
            f"{model.path}: the image processor makes tiles of {side} pixels, the vision tower takes {taken}"
        )
    return model.vision
