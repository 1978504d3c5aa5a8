"""Resizing with Pillow, in bands of a few lines, and its peak memory.

Pillow resizes in two passes, usually first along the lines, then along the columns, with 8 bits between them. A line
of the first pass depends on one line of the picture. A picture is therefore turned, flattened, padded and narrowed in
bands of some lines, and only the narrow picture is ever whole. Where Pillow may begin with the columns, the picture is
converted in bands and resized as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from mmserve.processors.pixels.sources import Size, Source
from mmserve.runtime.errors import MediaError

MAX_WORKING_PIXELS = 64_000_000
"""Limit for the resized picture, and for the narrow one before it. Without it, a picture of 1 x 100000 would be resized
to gigabytes."""
BAND_PIXELS = 1 << 16
"""Pixels of a band; one line, if that is longer. A band stays in the processor's cache while it is converted."""
_BAND_PIXEL_NBYTES = 24
"""A part of the picture, its RGBA form, white, the composition, RGB, and the narrowed lines."""
_RGB_NBYTES = 4
_FIXED_NBYTES = 3 << 19
"""State of the decoder and windows of the file."""


def resized(source: Source, size: Size, resample: Image.Resampling) -> Image.Image:
    """The whole source in RGB, resized. Raises MediaError."""
    check_working_pixels(size)
    check_working_pixels((size[0], source.size[1]))
    image = source.plain
    if image is None:
        image = _narrowed(source, size[0] if _lines_first(source.size, size) else source.size[0], resample)
    return image if image.size == size else image.resize(size, resample)


def check_working_pixels(size: Size) -> None:
    """Raise MediaError for a picture of more than MAX_WORKING_PIXELS."""
    if size[0] * size[1] > MAX_WORKING_PIXELS:
        raise MediaError("the image is too long and thin to be resized for this model")


def peak_nbytes(loading_nbytes: int, steps: Sequence[tuple[Size, Size]], output_nbytes: int) -> int:
    """Estimated peak memory of loading a picture, resizing it, and converting the results to the output.

    ``loading_nbytes``: of the decoder, the decoded picture included. ``steps``: (source, result) of each resizing; the
    results are kept until all are made. The output is counted in addition to all that, because the allocator keeps
    most of what was freed before. Raises MediaError.
    """
    peak, kept = 0, 0
    for (width, height), target in steps:
        check_working_pixels(target)
        check_working_pixels((target[0], height))
        narrow, whole = _RGB_NBYTES * target[0] * height, _RGB_NBYTES * target[0] * target[1]
        if not _lines_first((width, height), target):
            narrow = _RGB_NBYTES * (width * height + max(target[0] * height, width * target[1]))
        band = _BAND_PIXEL_NBYTES * max(BAND_PIXELS, width, *target)
        peak = max(peak, kept + narrow + max(band, whole))
        kept += whole
    return loading_nbytes + peak + output_nbytes + _FIXED_NBYTES


def _lines_first(source: Size, target: Size) -> bool:
    """Whether every version of Pillow begins with the lines.

    From version 13 it begins with the columns if the height shrinks by more than twice as many pixels as the width,
    version 12.3 if the picture is more than 100 times as long as wide.
    """
    shrinking = source[1] - target[1]
    if shrinking <= 0:
        return True
    return shrinking <= 2 * (source[0] - target[0]) and source[1] <= 100 * source[0]


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
