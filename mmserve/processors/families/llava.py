"""Image processor of LLaVA-1.5: every picture becomes one square and the same number of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.processors import clip_settings
from mmserve.processors.interface import Expansion, ImageProcessor, PixelForm, Run
from mmserve.processors.pixels.values import channel_values
from mmserve.processors.pixels.view_plan import ViewPlan
from mmserve.processors.pixels.views import PlannedViews
from mmserve.processors.settings import changeable


def processor(model: ModelSpec) -> LlavaProcessor:
    """Raises StartupError for settings that do not fit the vision tower."""
    return LlavaProcessor(model)


class LlavaProcessor(PlannedViews):
    def __init__(self, model: ModelSpec) -> None:
        """Read the checkpoint's settings. Raises StartupError."""
        assert isinstance(model.vision, ClipVision)
        self._settings = clip_settings.load_settings(model, model.vision.image_size)
        self.form = PixelForm(channel_values(self._settings))
        self.placeholder = self.row_token = model.image_token
        self.max_rows = model.vision.num_rows
        self.request_options = changeable(clip_settings.ClipSettings)
        self._expansion = Expansion(model.image_token, (Run(self.max_rows, (1, 1, self.max_rows)),))

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """Every picture has the same number of rows."""
        return None

    def among(self, count: int) -> ImageProcessor:
        return self

    def expand(self, width: int, height: int) -> Expansion:
        """Raises MediaError if the picture's proportions cannot be processed."""
        clip_settings.resized_size(self._settings, width, height)
        return self._expansion

    def plan(self, width: int, height: int) -> ViewPlan:
        """One tile [1, image_size, image_size, 3]. Raises MediaError."""
        return clip_settings.view_plan(self._settings, width, height)

    def grids(self, width: int, height: int) -> Sequence[tuple[int, int, int]]:
        """One tile."""
        return ((1, 1, 1),)

    def settings_digest(self) -> bytes:
        """See ``ImageProcessor``."""
        return hashlib.sha256(b"llava-1\0" + msgspec.json.encode(self._settings)).digest()
