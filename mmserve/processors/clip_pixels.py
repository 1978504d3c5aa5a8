"""Pixels for a CLIP tower: those that transformers' CLIP image processor rescales, bit for bit, in less memory."""

from __future__ import annotations

import numpy as np

from mmserve.processors.clip_settings import ClipSettings, both_sides, output_size, resized_size
from mmserve.processors.image_files.upright import UprightPicture
from mmserve.processors.pixels.resizing import peak_nbytes, resized
from mmserve.processors.pixels.sources import Canvas, Size
from mmserve.processors.pixels.values import RGB, Bytes, fill


def decoded_nbytes(settings: ClipSettings, width: int, height: int, loading_nbytes: int) -> int:
    """Estimated peak memory of decoding and processing a picture of this size. Raises MediaError.

    ``loading_nbytes``: of its decoder, the decoded picture included.
    """
    target = resized_size(settings, width, height)
    rows, columns = output_size(settings) or target[::-1]
    return peak_nbytes(loading_nbytes, [(_canvas(settings, width, height), target)], RGB * rows * columns)


def pixels(settings: ClipSettings, picture: UprightPicture) -> Bytes:
    """Convert a picture to [height, width, 3], C-contiguous. Raises MediaError.

    The caller keeps no reference to the picture, so that it is freed as early as possible.
    """
    size, canvas = resized_size(settings, *picture.size), _canvas(settings, *picture.size)
    background = tuple(int(value * 255) for value in settings.image_mean)
    source = picture if canvas == picture.size else Canvas(picture, canvas, background)
    del picture
    image = resized(source, size, settings.resample)
    del source
    height, width = image.size[::-1]
    if settings.do_center_crop and (crop := both_sides(settings.crop_size)):
        height, width = crop
    result = np.empty((height, width, RGB), np.uint8)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    fill(result, image, left=left, top=top)
    return result


def _canvas(settings: ClipSettings, width: int, height: int) -> Size:
    """(width, height) after padding."""
    side = max(width, height)
    return (side, side) if settings.pads_to_square else (width, height)
