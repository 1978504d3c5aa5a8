"""Image processing for towers that read square tiles: parts of a picture, each resized and cut into tiles."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from PIL import Image

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.tower import TowerSpec
from mmserve.processors.image_files.picture import decode
from mmserve.processors.interface import Expansion, ImageProcessor, PixelForm, Views
from mmserve.processors.pixels.patch_processor import ResizeSettings
from mmserve.processors.pixels.resizing import peak_nbytes, resized
from mmserve.processors.pixels.sources import Box, Canvas, Crop, Size, Source
from mmserve.processors.pixels.values import RGB, Bytes, channel_values, fill
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


class TileProcessor(ABC):
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

    def views(self, data: bytes | memoryview) -> Views:
        """Tiles [k, side, side, 3], those of a part row by row. Raises MediaError."""
        size, parts, images = self._resized(decode(data))
        tiles = np.empty((sum(part.num_tiles for part in parts), self._side, self._side, RGB), np.uint8)
        first = 0
        for part, image in zip(parts, images, strict=True):
            self._fill(tiles[first : first + part.num_tiles], part, image)
            first += part.num_tiles
        return Views(tiles, np.array(self.grids(*size), np.int32))

    def decoded_nbytes(self, width: int, height: int, loading_nbytes: int) -> int:
        """See ``ImageProcessor``. Raises MediaError."""
        parts = self.parts(width, height)
        steps = [(_source_size(part, width, height), part.size) for part in parts]
        num_tiles = sum(part.num_tiles for part in parts)
        return peak_nbytes(loading_nbytes, steps, RGB * num_tiles * self._side**2)

    def settings_digest(self) -> bytes:
        """See ``ImageProcessor``."""
        name = f"{type(self).__name__}-1 {self._side}\0"
        return hashlib.sha256(name.encode() + msgspec.json.encode(self._settings)).digest()

    def _resized(self, picture: Source) -> tuple[Size, Sequence[Part], list[Image.Image]]:
        """The picture's size and its parts."""
        parts = self.parts(*picture.size)
        sources = [self._source(picture, part) for part in parts]
        images = [
            resized(source, part.size, self._settings.resample) for source, part in zip(sources, parts, strict=True)
        ]
        return picture.size, parts, images

    def _source(self, picture: Source, part: Part) -> Source:
        if part.canvas:
            return Canvas(picture, part.canvas, tuple(int(255 * mean) for mean in self._settings.image_mean))
        return Crop(picture, part.box) if part.box else picture

    def _fill(self, tiles: Bytes, part: Part, image: Image.Image) -> None:
        left, top = (self._side * part.columns - image.width) // 2, (self._side * part.rows - image.height) // 2
        for index, tile in enumerate(tiles):
            row, column = divmod(index, part.columns)
            fill(tile, image, left=self._side * column - left, top=self._side * row - top)


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


def _source_size(part: Part, width: int, height: int) -> Size:
    """Of what is resized."""
    if part.canvas:
        return part.canvas
    return (part.box[2] - part.box[0], part.box[3] - part.box[1]) if part.box else (width, height)
