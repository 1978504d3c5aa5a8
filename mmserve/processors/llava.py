"""LLaVA-1.5's image side without torch: how many tokens a picture takes, and its pixels for the vision tower."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from mmserve.checkpoint.spec import VisionSpec
from mmserve.processors import clip_pixels
from mmserve.processors.picture import decode


class LlavaProcessor:
    """Every picture becomes one square of ``image_size`` and ``num_image_tokens`` tokens."""

    def __init__(self, checkpoint: Path, vision: VisionSpec) -> None:
        """Reads the checkpoint's settings. Raises StartupError."""
        self._settings = clip_pixels.load_settings(checkpoint, vision.image_size)
        self._num_tokens = vision.num_image_tokens

    def num_tokens(self, width: int, height: int) -> int:
        """Tokens of a picture of this size. Raises MediaError when its proportions cannot be processed."""
        clip_pixels.resized_size(self._settings, width, height)
        return self._num_tokens

    def decoded_nbytes(self, width: int, height: int) -> int:
        """About the memory its decoding takes. Raises MediaError."""
        return clip_pixels.decoded_nbytes(self._settings, width, height)

    def pixels(self, data: bytes | memoryview) -> clip_pixels.Pixels:
        """Compressed bytes -> float32 [3, image_size, image_size]. Raises MediaError."""
        return clip_pixels.pixels(self._settings, decode(data))

    def settings_digest(self) -> bytes:
        """32 bytes that change whenever the same picture would give other pixels; part of the content key."""
        return hashlib.sha256(b"llava-1\0" + msgspec.json.encode(self._settings)).digest()
