"""Image processor of LLaVA-1.5: every picture becomes one square and the same number of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.processors import clip_pixels, clip_settings
from mmserve.processors.image_files.picture import decode
from mmserve.processors.interface import Expansion, ImageProcessor, PixelForm, Run, Views
from mmserve.processors.pixels.values import channel_values
from mmserve.processors.settings import changeable

_ONE_TILE = np.ones((1, 3), np.int32)


def processor(model: ModelSpec) -> LlavaProcessor:
    """Raises StartupError for settings that do not fit the vision tower."""
    return LlavaProcessor(model)


class LlavaProcessor:
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

    def views(self, data: bytes | memoryview) -> Views:
        """One tile [1, image_size, image_size, 3]. Raises MediaError."""
        return Views(clip_pixels.pixels(self._settings, decode(data))[None], _ONE_TILE)

    def decoded_nbytes(self, width: int, height: int, loading_nbytes: int) -> int:
        """See ``ImageProcessor``."""
        return clip_pixels.decoded_nbytes(self._settings, width, height, loading_nbytes)

    def settings_digest(self) -> bytes:
        """See ``ImageProcessor``."""
        return hashlib.sha256(b"llava-1\0" + msgspec.json.encode(self._settings)).digest()
