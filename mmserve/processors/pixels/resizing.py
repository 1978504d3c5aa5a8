"""Resizing with Pillow, in bands of a few lines, and its peak memory.

Pillow resizes in two passes, usually first along the lines, then along the columns, with 8 bits between them. A line
of the first pass depends on one line of the picture. A picture is therefore turned, flattened, padded and narrowed in
bands of some lines, and only the narrow picture is ever whole. Where Pillow may begin with the columns, the picture is
converted in bands and resized as a whole.
"""

from __future__ import annotations

import PIL
from packaging.version import Version
from PIL import Image

from mmserve.processors.pixels.sources import Size, Source
from mmserve.runtime.errors import MediaError

_PILLOW = Version(PIL.__version__).release
MAX_WORKING_PIXELS = 64_000_000
"""Limit for the resized picture, and for the narrow one before it. Without it, a picture of 1 x 100000 would be resized
to gigabytes."""
BAND_PIXELS = 1 << 16
"""Pixels of a band; one line, if that is longer. A band stays in the processor's cache while it is converted."""
_BAND_PIXEL_NBYTES = 24
"""A part of the picture, its RGBA form, white, the composition, RGB, and the narrowed lines."""
_RGB_NBYTES = 4
FIXED_NBYTES = 3 << 19
"""State of the decoder and windows of the file."""


def resized(source: Source, size: Size, resample: Image.Resampling) -> Image.Image:
    """The whole source in RGB, resized. Raises MediaError."""
    check_working_pixels(size)
    check_working_pixels((size[0], source.size[1]))
    image = source.plain
    if image is None:
        image = _narrowed(source, size[0] if lines_first(source.size, size) else source.size[0], resample)
    return image if image.size == size else image.resize(size, resample)


def check_working_pixels(size: Size) -> None:
    """Raise MediaError for a picture of more than MAX_WORKING_PIXELS."""
    if size[0] * size[1] > MAX_WORKING_PIXELS:
        raise MediaError("the image is too long and thin to be resized for this model")


def working_nbytes(source: Size, target: Size) -> int:
    """Estimated memory of ``resized`` beside its source, the result included. Raises MediaError."""
    (width, height), (to_width, to_height) = source, target
    check_working_pixels(target)
    check_working_pixels((to_width, height))
    narrow, whole = _RGB_NBYTES * to_width * height, _RGB_NBYTES * to_width * to_height
    if not lines_first(source, target):
        narrow = _RGB_NBYTES * (width * height + max(to_width * height, width * to_height))
    return narrow + max(band_nbytes(max(width, *target)), whole)


def band_nbytes(longest: int) -> int:
    """Estimated memory of converting a band of lines of at most ``longest`` pixels."""
    return _BAND_PIXEL_NBYTES * max(BAND_PIXELS, longest)


def lines_first(source: Size, target: Size) -> bool:
    """Whether every version of Pillow begins with the lines.

    From version 13 it begins with the columns if the height shrinks by more than twice as many pixels as the width,
    version 12.3 if the picture is more than 100 times as long as wide.
    """
    shrinking = source[1] - target[1]
    if shrinking <= 0:
        return True
    return shrinking <= 2 * (source[0] - target[0]) and source[1] <= 100 * source[0]


def columns_first(source: Size, target: Size) -> bool | None:
    """Whether the installed Pillow begins with the columns. None: it may do either."""
    if lines_first(source, target) or _PILLOW < (12, 3):
        return False
    shrinking = source[1] - target[1]
    known = _PILLOW[0] == 13 and shrinking > 2 * (source[0] - target[0])
    return True if known else None


def _narrowed(source: Source, width: int, resample: Image.Resampling) -> Image.Image:
    """The source with its lines resized to ``width``."""
    whole_width, height = source.size
    narrow = Image.new("RGB", (width, height))
    num_lines = max(1, BAND_PIXELS // max(whole_width, width))
    for top in range(0, height, num_lines):
        bottom = min(top + num_lines, height)
        band = source.rgb(0, top, whole_width, bottom)
        if width != whole_width:
            band = band.resize((width, bottom - top), resample)
        narrow.paste(band, (0, top))
    return narrow
