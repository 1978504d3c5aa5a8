"""The image processor of each model family."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.clip_pixels import Pixels
from mmserve.processors.llava import LlavaProcessor


class ImageProcessor(Protocol):
    """Image processing of a model family. HTTP workers use token counts and digests, visual servers use pixels."""

    def num_tokens(self, width: int, height: int) -> int:
        """Image tokens of a picture of this size. Raises MediaError."""
        ...

    def decoded_nbytes(self, width: int, height: int, loading_nbytes: int) -> int:
        """Estimated peak memory of decoding a picture of this size, pixels included. Raises MediaError.

        ``loading_nbytes``: of its decoder, from ``picture.Header``.
        """
        ...

    def pixels(self, data: bytes | memoryview) -> Pixels:
        """Decode compressed bytes to float32 [3, H, W]. Raises MediaError."""
        ...

    def settings_digest(self) -> bytes:
        """Differs if the same bytes would give different pixels."""
        ...


def processor_for(model: ModelSpec) -> ImageProcessor | None:
    """The image processor of a model; None for a text model. Raises StartupError."""
    if model.vision is None:
        return None
    return LlavaProcessor(Path(model.path), model.vision)
