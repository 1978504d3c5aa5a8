"""Decodes image files to upright 8-bit RGB pictures, and reads their headers.

Uses only Pillow's raster decoders of common formats. Messages of MediaError are shown to clients.
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
"""Accepted formats. Pillow has more decoders; some run interpreters (PostScript), others are rarely tested."""

# Pillow's own limit only warns on stderr; ``header`` enforces max_pixels before anything is decoded.
Image.MAX_IMAGE_PIXELS = None


class Header(NamedTuple):
    """Size of the picture as stored, before its EXIF orientation is applied, and its Pillow mode."""

    width: int
    height: int
    mode: str


def header(data: bytes, max_pixels: int) -> Header:
    """Read the header without decoding the picture.

    The number of frames needs no limit, because only the first one is ever decoded.
    Raises MediaError for an empty file, an unknown format, no pixels, or more than ``max_pixels``.
    """
    width, height, mode = jpeg_header(data) or _pillow_header(data)
    if width < 1 or height < 1:
        raise MediaError(f"the image has no pixels ({width} x {height})")
    if width * height > max_pixels:
        raise MediaError(f"the image is too large: {width} x {height} is more than {max_pixels} pixels")
    return Header(width, height, mode)


def _pillow_header(data: bytes) -> tuple[int, int, str]:
    with _open(data) as image:
        return (*image.size, image.mode)


def decode(data: bytes | memoryview) -> Image.Image:
    """Decode the first frame: upright, mode RGB, transparency composited onto white. Raises MediaError.

    A view is read in place, and not used after this returns.
    """
    with _open(data) as image:
        try:
            image.load()
            return _to_rgb(_upright(image))
        except (MediaError, MemoryError):
            raise
        except Exception as error:  # decoders raise exceptions of any type for broken files
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
    # A picture with unreadable metadata is used as it is stored.
    with suppress(SyntaxError, ValueError, TypeError, KeyError, OSError):
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _to_rgb(image: Image.Image) -> Image.Image:
    """Composites alpha like transformers' ``convert_to_rgb``. 16-bit grey keeps its high byte; Pillow would clip it."""
    if image.mode.startswith("I") or image.mode == "F":
        image = _grey_from_16_bit(image)
    if "A" in image.getbands() or "a" in image.getbands() or image.info.get("transparency") is not None:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey_from_16_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
        raise MediaError("pixels of more than 16 bits or with fractions are not supported")
    return Image.fromarray((values >> 8).astype(np.uint8))
