"""Image processor of LLaVA-1.5."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from mmserve.checkpoint.spec import VisionSpec
from mmserve.processors import clip_pixels, clip_settings
from mmserve.processors.picture import decode


class LlavaProcessor:
    """Turns every picture into a square of ``image_size`` pixels and ``num_image_tokens`` tokens."""

    def __init__(self, checkpoint: Path, vision: VisionSpec) -> None:
        """Read the checkpoint's settings. Raises StartupError."""
        self._settings = clip_settings.load_settings(checkpoint, vision.image_size)
        self._num_tokens = vision.num_image_tokens

    def num_tokens(self, width: int, height: int) -> int:
        """Image tokens of a picture of this size. Raises MediaError if its proportions cannot be processed."""
        clip_settings.resized_size(self._settings, width, height)
        return self._num_tokens

    def decoded_nbytes(self, width: int, height: int, loading_nbytes: int) -> int:
        """Estimated peak memory of decoding, pixels included. Raises MediaError.

        ``loading_nbytes``: of the decoder, from the header.
        """
        return clip_pixels.decoded_nbytes(self._settings, width, height, loading_nbytes)

    def pixels(self, data: bytes | memoryview) -> clip_pixels.Pixels:
        """Decode compressed bytes to float32 [3, image_size, image_size]. Raises MediaError."""
        return clip_pixels.pixels(self._settings, decode(data))

    def settings_digest(self) -> bytes:
        """32 bytes that differ if the same picture would give different pixels. Part of the content key."""
        return hashlib.sha256(b"llava-1\0" + msgspec.json.encode(self._settings)).digest()
