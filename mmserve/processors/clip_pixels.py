"""Pixels for a CLIP vision tower: the results of transformers' CLIP image processor, bit for bit, in less memory.

Pillow resizes in two passes, first along the lines, then along the columns, with 8 bits between them. A line of the
first pass depends on one line of the picture. A picture is therefore turned, flattened, padded and narrowed in bands of
some lines, and only the narrow picture is ever whole. The last steps have 256 different results for each channel, which
are computed once and looked up.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmserve.processors.clip_settings import ClipSettings, both_sides, output_size, resized_size
from mmserve.processors.upright import UprightPicture

BAND_PIXELS = 1 << 16
"""Pixels of a band; one line, if that is longer. A band stays in the processor's cache while it is converted."""
_BAND_PIXEL_NBYTES = 24
"""A part of the picture, its RGBA form, white, the composition, RGB, and the narrowed lines."""
_RGB_NBYTES = 4
_OUTPUT_PIXEL_NBYTES = 24
"""12 as float32, 3 as bytes, 8 for the indices of one channel."""
_FIXED_NBYTES = 1 << 20
"""State of the decoder and windows of the file."""

Pixels = npt.NDArray[np.float32]


def decoded_nbytes(settings: ClipSettings, width: int, height: int, loading_nbytes: int) -> int:
    """Estimated peak memory of decoding and processing a picture of this size. Raises MediaError.

    ``loading_nbytes``: of its decoder, the decoded picture included.
    """
    upright = {(width, height), (height, width)}  # only the EXIF data say which
    narrow = _RGB_NBYTES * max(resized_size(settings, *size)[0] * _canvas(settings, *size)[1] for size in upright)
    resized = resized_size(settings, width, height)
    out_height, out_width = output_size(settings) or resized[::-1]
    band = _BAND_PIXEL_NBYTES * max(BAND_PIXELS, width, height, *resized)
    whole = _RGB_NBYTES * resized[0] * resized[1]
    floats = _OUTPUT_PIXEL_NBYTES * out_height * out_width
    return max(loading_nbytes + narrow + max(band, whole), narrow + whole + floats) + _FIXED_NBYTES


def pixels(settings: ClipSettings, picture: UprightPicture) -> Pixels:
    """Convert a picture to float32 [3, height, width], C-contiguous. Raises MediaError.

    The caller keeps no reference to the picture, so that it is freed as early as possible.
    """
    size = resized_size(settings, *picture.size)
    image = picture.plain if settings.do_resize and not settings.pads_to_square else None
    if image is None:
        image = _narrowed(settings, picture, size[0])
    del picture
    if settings.do_resize:
        image = image.resize(size, resample=Image.Resampling(settings.resample))
    array: npt.NDArray[Any] = np.asarray(image)
    del image
    if settings.do_center_crop and (crop := both_sides(settings.crop_size)):
        array = _center_crop(array, *crop)
    values = _channel_values(settings)
    result = np.empty((3, *array.shape[:2]), np.float32)
    for channel in range(3):
        np.take(values[channel], array[..., channel], out=result[channel], mode="clip")
    return result


def _canvas(settings: ClipSettings, width: int, height: int) -> tuple[int, int]:
    """(width, height) after padding."""
    side = max(width, height)
    return (side, side) if settings.pads_to_square else (width, height)


def _narrowed(settings: ClipSettings, picture: UprightPicture, width: int) -> Image.Image:
    """The picture in RGB on its canvas, with the lines resized to ``width``."""
    canvas_width, canvas_height = _canvas(settings, *picture.size)
    left, above = (canvas_width - picture.size[0]) // 2, (canvas_height - picture.size[1]) // 2
    background = tuple(int(value * 255) for value in settings.image_mean)
    narrow = Image.new("RGB", (width, canvas_height))
    num_lines = max(1, BAND_PIXELS // max(canvas_width, width))
    for top in range(0, canvas_height, num_lines):
        bottom = min(top + num_lines, canvas_height)
        first, end = max(top - above, 0), min(bottom - above, picture.size[1])
        part = picture.rgb(0, first, picture.size[0], end) if first < end else None
        if part is None or part.size != (canvas_width, bottom - top):
            band = Image.new("RGB", (canvas_width, bottom - top), background)
            if part is not None:
                band.paste(part, (left, first + above - top))
            part = band
        if width != canvas_width:
            part = part.resize((width, bottom - top), resample=Image.Resampling(settings.resample))
        narrow.paste(part, (0, top))
    return narrow


def _channel_values(settings: ClipSettings) -> npt.NDArray[np.float32]:
    """float32 [3, 256]: the result for each value of each channel."""
    values: npt.NDArray[Any] = np.arange(256, dtype=np.uint8)
    if settings.do_rescale:
        values = values.astype(np.float64) * settings.rescale_factor
    values = np.broadcast_to(values.astype(np.float32), (3, 256))
    if settings.do_normalize:
        mean, std = np.asarray(settings.image_mean, np.float32), np.asarray(settings.image_std, np.float32)
        values = (values - mean[:, None]) / std[:, None]
    return np.ascontiguousarray(values)


def _center_crop(array: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """Crop [H, W, 3] around the centre. A smaller picture is padded with zeros first."""
    rows, columns = array.shape[:2]
    above, left = math.ceil(max(height - rows, 0) / 2), math.ceil(max(width - columns, 0) / 2)
    if rows < height or columns < width:
        padded = np.zeros((max(height, rows), max(width, columns), array.shape[2]), array.dtype)
        padded[above : above + rows, left : left + columns] = array
        array = padded
    top, first = (rows - height) // 2 + above, (columns - width) // 2 + left
    top, first = max(top, 0), max(first, 0)
    return array[top : top + height, first : first + width]
