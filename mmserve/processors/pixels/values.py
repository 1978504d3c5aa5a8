"""The bytes of resized pictures, and the numbers that they stand for.

The last steps, rescaling and normalizing, have 256 different results for each channel. They are computed once, and
looked up where the vision tower computes (``model_backend.vision.pixels``).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from mmserve.processors.pixels.resizing import BAND_PIXELS
from mmserve.processors.pixels.sources import Source

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
RGB = 3


class ValueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every image processor in transformers. Defaults are those of CLIP's."""

    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)


def channel_values(settings: ValueSettings) -> Floats:
    """float32 [3, 256]: the result for each value of each channel."""
    values: npt.NDArray[Any] = np.arange(256, dtype=np.uint8)
    if settings.do_rescale:
        values = values.astype(np.float64) * settings.rescale_factor
    values = np.broadcast_to(values.astype(np.float32), (RGB, 256))
    if settings.do_normalize:
        mean, std = np.asarray(settings.image_mean, np.float32), np.asarray(settings.image_std, np.float32)
        values = (values - mean[:, None]) / std[:, None]
    return np.ascontiguousarray(values)


def background(settings: ValueSettings) -> tuple[int, ...]:
    """The mean colour, of canvases around pictures."""
    return tuple(int(255 * mean) for mean in settings.image_mean)


def fill(pixels: Bytes, image: Image.Image, *, left: int = 0, top: int = 0) -> None:
    """Write the part of an RGB image that begins at (left, top) into ``pixels`` [height, width, 3].

    Beyond its edges the image counts as black.
    """
    height, width = pixels.shape[:2]
    num_lines = max(1, BAND_PIXELS // width)
    for first in range(0, height, num_lines):
        end = min(first + num_lines, height)
        pixels[first:end] = np.asarray(image.crop((left, top + first, left + width, top + end)))


def fill_from(pixels: Bytes, picture: Source) -> None:
    """Write a whole picture into ``pixels`` [height, width, 3]. Raises MediaError."""
    height, width = pixels.shape[:2]
    num_lines = max(1, BAND_PIXELS // width)
    for first in range(0, height, num_lines):
        end = min(first + num_lines, height)
        pixels[first:end] = np.asarray(picture.rgb(0, first, width, end))
