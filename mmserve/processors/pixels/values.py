"""Float values of resized pictures, as planes and as patches.

The last steps, rescaling and normalizing, have 256 different results for each channel. They are computed once and
looked up.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from mmserve.processors.pixels.resizing import BAND_PIXELS

Floats = npt.NDArray[np.float32]
_RGB = 3


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
    values = np.broadcast_to(values.astype(np.float32), (_RGB, 256))
    if settings.do_normalize:
        mean, std = np.asarray(settings.image_mean, np.float32), np.asarray(settings.image_std, np.float32)
        values = (values - mean[:, None]) / std[:, None]
    return np.ascontiguousarray(values)


def fill_planes(planes: Floats, image: Image.Image, values: Floats, *, left: int = 0, top: int = 0) -> None:
    """Write the part of an RGB image that begins at (left, top) into ``planes`` [3, height, width], C-contiguous.

    Beyond its edges the image counts as black.
    """
    height, width = planes.shape[1:]
    num_lines = max(1, BAND_PIXELS // width)
    for first in range(0, height, num_lines):
        end = min(first + num_lines, height)
        band = np.asarray(image.crop((left, top + first, left + width, top + end)))
        for channel in range(_RGB):
            np.take(values[channel], band[..., channel], out=planes[channel, first:end], mode="clip")


def fill_patches(patches: Floats, image: Image.Image, values: Floats, *, side: int, block: int, frames: int) -> None:
    """Write an RGB image into ``patches`` [n, 3 * frames * side * side], C-contiguous.

    Patches of ``side`` pixels stand row by row in blocks of ``block`` x ``block``, the blocks row by row. A patch is
    ordered by channel, frame, y, x; all its frames are the same. The image consists of whole blocks.
    """
    width, height = image.size
    unit = side * block
    num_blocks = width // unit
    strips = patches.reshape(height // unit, num_blocks * block * block, _RGB, frames, side * side)
    for index, strip in enumerate(strips):
        pixels = np.asarray(image.crop((0, index * unit, width, (index + 1) * unit)))
        pixels = pixels.reshape(block, side, num_blocks, block, side, _RGB).transpose(2, 0, 3, 5, 1, 4)
        pixels = pixels.reshape(num_blocks * block * block, _RGB, side * side)
        for channel in range(_RGB):
            strip[:, channel] = np.take(values[channel], pixels[:, channel], mode="clip")[:, None]
