"""Compressed bytes to an upright 8-bit RGB picture, or a MediaError whose text names nothing internal.

Only Pillow's raster decoders for common formats are ever tried. Knows no model and no settings.
"""

from __future__ import annotations

from contextlib import suppress
from typing import IO, NamedTuple, cast

import numpy as np
from PIL import Image, ImageOps

from mmserve.processors.jpeg_header import jpeg_header
from mmserve.processors.view_file import ViewFile
from mmserve.runtime.errors import MediaError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""What is accepted. Pillow knows many more, some of which run interpreters or are rarely exercised."""

# The limit is max_pixels, checked before anything is decoded; Pillow's own would only add a warning on stderr.
Image.MAX_IMAGE_PIXELS = None


class Header(NamedTuple):
    """What a file says of its picture: size as stored, before EXIF orientation, and Pillow's name of its mode."""

    width: int
    height: int
    mode: str


def header(data: bytes, max_pixels: int) -> Header:
    """Read from the header alone: nothing is decoded.

    Further frames of an animation are never decoded, so their number needs no limit.
    Raises MediaError for an empty file, an unknown format, no pixels, or more than ``max_pixels``.
    """
    width, height, mode = jpeg_header(data) or _opened(data)
    if width < 1 or height < 1:
        raise MediaError(f"the image has no pixels ({width} x {height})")
    if width * height > max_pixels:
        raise MediaError(f"the image is too large: {width} x {height} is more than {max_pixels} pixels")
    return Header(width, height, mode)


def _opened(data: bytes) -> tuple[int, int, str]:
    with _open(data) as image:
        return (*image.size, image.mode)


def decode(data: bytes | memoryview) -> Image.Image:
    """First frame, turned upright, mode RGB, transparency composited onto white. Raises MediaError.

    A view is read where it is, and no more once this returns.
    """
    with _open(data) as image:
        try:
            image.load()
            return _to_rgb(_upright(image))
        except (MediaError, MemoryError):
            raise
        except Exception as error:  # decoders raise whatever a broken file makes them raise
            raise MediaError("the image cannot be decoded: it is truncated or corrupt") from error


def _open(data: bytes | memoryview) -> Image.Image:
    if not data:
        raise MediaError("the image is empty (0 bytes)")
    try:
        return Image.open(cast(IO[bytes], ViewFile(memoryview(data))), formats=FORMATS)
    except MemoryError:
        raise
    except Exception as error:  # as in decode
        raise MediaError(f"not an image in a supported format ({', '.join(FORMATS)})") from error


def _upright(image: Image.Image) -> Image.Image:
    # Unreadable metadata does not make the pixels wrong.
    with suppress(SyntaxError, ValueError, TypeError, KeyError, OSError):
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    """Alpha as transformers' ``convert_to_rgb`` does it; 16-bit grey keeps its high byte instead of being clipped."""
    if image.mode.startswith("I") or image.mode == "F":
        image = _grey_from_wide(image)
    if "A" in image.getbands() or "a" in image.getbands() or image.info.get("transparency") is not None:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey_from_wide(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
        raise MediaError("pixels of more than 16 bits or with fractions are not supported")
    return Image.fromarray((values >> 8).astype(np.uint8))
