"""Which processor a model's images go through. The one place that names the families."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.clip_pixels import Pixels
from mmserve.processors.llava import LlavaProcessor


class ImageProcessor(Protocol):
    """What HTTP workers (token counts, keys) and visual servers (pixels) need of a family."""

    def num_tokens(self, width: int, height: int) -> int:
        """Image tokens of a picture of this size. Raises MediaError."""
        ...

    def decoded_nbytes(self, width: int, height: int) -> int:
        """About the memory that decoding a picture of this size takes, its pixels included. Raises MediaError."""
        ...

    def pixels(self, data: bytes | memoryview) -> Pixels:
        """Compressed bytes -> float32 [3, H, W]. Raises MediaError."""
        ...

    def settings_digest(self) -> bytes:
        """Changes whenever the same bytes would give other pixels."""
        ...


def processor_for(model: ModelSpec) -> ImageProcessor | None:
    """The model's image processor; None for a text model. Raises StartupError."""
    if model.vision is None:
        return None
    return LlavaProcessor(Path(model.path), model.vision)
