"""Image processing for towers that read a picture as patches, in a number that depends on its size."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from PIL import Image

from mmserve.processors.interface import Expansion, ImageProcessor, PixelForm, Run
from mmserve.processors.pixels.sources import Size
from mmserve.processors.pixels.values import ValueSettings, channel_values
from mmserve.processors.pixels.view_plan import Cut, Resizing, ViewPlan
from mmserve.processors.pixels.views import PlannedViews
from mmserve.processors.settings import changeable


class ResizeSettings(ValueSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of processors that resize every picture."""

    do_resize: bool = True
    resample: Image.Resampling = Image.Resampling.BICUBIC

    def __post_init__(self) -> None:
        if not self.do_resize:
            raise ValueError("do_resize must be true")


class Patches(NamedTuple):
    """How a resized picture becomes patches."""

    side: int
    """Pixels."""
    merge: int
    """merge x merge patches become one row of the language model."""
    in_blocks: bool
    """True: the patches of a row stand together. False: patches stand line by line."""
    frames: int = 1
    """Copies of the picture in each patch."""

    @property
    def row_side(self) -> int:
        """Side of the square of pixels that becomes one row."""
        return self.side * self.merge


class PatchProcessor(PlannedViews):
    """Resizes a picture to whole rows and cuts it into patches. A family says to which size, and what the text is."""

    def __init__(self, settings: ResizeSettings, patches: Patches, *, row_token: str, max_rows: int) -> None:
        self.placeholder = self.row_token = row_token
        self.max_rows = max_rows
        self.request_options = changeable(type(settings))
        self._settings = settings
        self._patches = patches
        block = patches.merge if patches.in_blocks else 1
        self.form = PixelForm(channel_values(settings), patches.side, block, patches.frames)

    @abstractmethod
    def resized_size(self, width: int, height: int) -> Size:
        """Multiples of ``row_side``. Raises MediaError if the picture's proportions cannot be processed."""

    @abstractmethod
    def within(self, rows: int) -> Mapping[str, Any] | None: ...

    def among(self, count: int) -> ImageProcessor:
        return self

    def expand(self, width: int, height: int) -> Expansion:
        """One run over the grid of rows. Raises MediaError."""
        columns, rows = self.grid(width, height)
        return Expansion(self.row_token, (Run(rows * columns, (1, rows, columns)),))

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """(columns, rows) of embeddings. Raises MediaError."""
        resized_width, resized_height = self.resized_size(width, height)
        return resized_width // self._patches.row_side, resized_height // self._patches.row_side

    def plan(self, width: int, height: int) -> ViewPlan:
        """The resized picture. Raises MediaError."""
        size = self.resized_size(width, height)
        return ViewPlan((width, height), (Resizing(0, size),), (Cut(1),), size, self._settings.resample)

    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """One: (1, lines, columns) of patches. Raises MediaError."""
        size, side = self.resized_size(width, height), self._patches.side
        return ((1, size[1] // side, size[0] // side),)

    def settings_digest(self) -> bytes:
        """See ``ImageProcessor``."""
        name = f"{type(self).__name__}-1 {self._patches}\0"
        return hashlib.sha256(name.encode() + msgspec.json.encode(self._settings)).digest()
