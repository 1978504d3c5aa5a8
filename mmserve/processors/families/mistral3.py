"""Image processor of Mistral Small 3.x and Pixtral: a run for each line of a picture, with separators between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mmserve.checkpoint.files import read_json
from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.interface import Expansion, Run
from mmserve.processors.pixels.patch_processor import Patches, PatchProcessor, ResizeSettings
from mmserve.processors.pixels.sources import Size
from mmserve.processors.settings import load_settings
from mmserve.runtime.errors import MediaError

_UNUSED = ("patch_size", "do_pad")
"""transformers takes the size of patches from the processor, and pads only the batches of its own tower."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The largest sides in pixels: one for both, or each."""

    longest_edge: int | None = None
    height: int | None = None
    width: int | None = None


class Mistral3Settings(ResizeSettings, frozen=True, kw_only=True):
    """Fields and defaults of PixtralImageProcessor."""

    size: Limits = Limits(longest_edge=1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.largest) < 1:
            raise ValueError("size needs longest_edge, or height and width")

    @property
    def largest(self) -> Size:
        """(width, height)."""
        edge = self.size.longest_edge
        return (edge, edge) if edge else (self.size.width or 0, self.size.height or 0)


class Separators(msgspec.Struct, frozen=True):
    """Fields of processor_config.json."""

    image_break_token: str = "[IMG_BREAK]"
    image_end_token: str = "[IMG_END]"


def processor(model: ModelSpec) -> Mistral3Processor:
    """Raises StartupError for settings that are unknown."""
    separators = msgspec.convert(read_json(Path(model.path) / "processor_config.json") or {}, Separators)
    return Mistral3Processor(model, load_settings(model, Mistral3Settings, unused=_UNUSED), separators)


class Mistral3Processor(PatchProcessor):
    def __init__(self, model: ModelSpec, settings: Mistral3Settings, separators: Separators) -> None:
        assert model.vision is not None
        patches = Patches(model.vision.patch_size, math.isqrt(model.vision.patches_per_row), in_blocks=False)
        self._largest = settings.largest
        self._separators = separators
        columns, rows = (-(-side // patches.row_side) for side in self._largest)
        super().__init__(settings, patches, row_token=model.image_token, max_rows=columns * rows)

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """Shorter sides."""
        edge = math.isqrt(rows) * self._patches.row_side
        return {"size": {"longest_edge": min(edge, *self._largest)}} if edge else None

    def resized_size(self, width: int, height: int) -> Size:
        """At most the largest sides, rounded up to whole rows. Raises MediaError if a side would vanish."""
        ratio = max(height / self._largest[1], width / self._largest[0])
        if ratio > 1:
            width, height = math.floor(width / ratio), math.floor(height / ratio)
        if min(width, height) < 1:
            raise MediaError("the image is too long and thin to be resized for this model")
        side = self._patches.row_side
        return -(-width // side) * side, -(-height // side) * side

    def expand(self, width: int, height: int) -> Expansion:
        """A run and a separator for each line. Raises MediaError."""
        columns, rows = self.grid(width, height)
        lines = self._separators.image_break_token.join([self.row_token] * rows)
        return Expansion(lines + self._separators.image_end_token, (Run(columns, (1, 1, columns)),) * rows)
