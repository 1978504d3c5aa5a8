"""Opens image files and reads their headers.

Uses only Pillow's raster decoders of common formats. Messages of MediaError are shown to clients.
"""

from __future__ import annotations

import warnings
from typing import IO, NamedTuple, cast

from PIL import Image, PngImagePlugin

from mmserve.processors.image_files.jpeg_header import jpeg_header
from mmserve.processors.image_files.loading_memory import image_nbytes, is_run_length_encoded, loading_nbytes
from mmserve.processors.image_files.orientation import orientation, upright_size
from mmserve.processors.image_files.segments import gif_header, png_exif
from mmserve.processors.image_files.upright import UprightPicture
from mmserve.processors.image_files.view_file import ViewFile
from mmserve.runtime.errors import MediaError
from mmserve.runtime.shortage import shortage_of

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Accepted formats. Pillow has more decoders; some run interpreters (PostScript), others are rarely tested."""
_MAX_RLE_PIXELS = 4_000_000
"""Limit for run-length encoded BMP files, which Pillow decodes in Python: a second for this many pixels."""

# Pillow's own limits are for the sum over a process's life of one picture; these hold a file's metadata small.
PngImagePlugin.MAX_TEXT_MEMORY = 4 << 20
# ``header`` enforces max_pixels. Pillow's limit is for what it allocates while it opens a file; see ``_open``.
Image.MAX_IMAGE_PIXELS = None
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


class Header(NamedTuple):
    """Size of the picture after it is turned upright, and its Pillow mode."""

    width: int
    height: int
    mode: str
    loading_nbytes: int = 0
    """Estimated peak memory of its decoder, the decoded picture included."""


def header(data: bytes, max_pixels: int) -> Header:
    """Read the header without decoding the picture.

    The number of frames needs no limit, because only the first one is ever decoded.
    Raises MediaError for an empty file, an unknown format, no pixels, more than ``max_pixels``, or a file whose
    structure would take long to read.
    """
    found = _jpeg(data) or _gif(data) or _other(data, max_pixels)
    if found.width < 1 or found.height < 1:
        raise MediaError(f"the image has no pixels ({found.width} x {found.height})")
    if found.width * found.height > max_pixels:
        raise MediaError(f"the image is too large: {found.width} x {found.height} is more than {max_pixels} pixels")
    return found


def _jpeg(data: bytes) -> Header | None:
    if (jpeg := jpeg_header(data)) is None:
        return None
    pixel_nbytes = image_nbytes(jpeg.mode, jpeg.width * jpeg.height)
    size = upright_size(jpeg.width, jpeg.height, jpeg.orientation)
    return Header(*size, jpeg.mode, pixel_nbytes + jpeg.coefficient_nbytes)


def _gif(data: bytes) -> Header | None:
    if (gif := gif_header(data)) is None:
        return None
    width, height, mode = gif
    # A second image of this size is made for a frame that is disposed of.
    return Header(width, height, mode, 2 * image_nbytes(mode, width * height))


def _other(data: bytes, max_pixels: int) -> Header:
    png_exif(data)  # raises MediaError for a PNG that would take long to open
    # Pillow refuses more than twice this number, before it allocates anything. The value is the same in all threads.
    Image.MAX_IMAGE_PIXELS = (max_pixels + 1) // 2
    with _open(data) as image:
        _check_rle(image)
        size = upright_size(*image.size, orientation(image, data))
        return Header(*size, image.mode, loading_nbytes(image, len(data)))


def decode(data: bytes | memoryview) -> UprightPicture:
    """Decode the first frame. A view is read in place, and not used after this returns. Raises MediaError."""
    with _open(data) as image:
        _check_rle(image)
        try:
            turn = orientation(image, data)
            image.load()
            # Pillow turns TIFF files upright itself.
            return UprightPicture(image, 1 if image.format == "TIFF" else turn)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise exceptions of any type for broken files
            _raise_shortage(error)
            raise MediaError("the image cannot be decoded: it is truncated or corrupt") from error


def _open(data: bytes | memoryview) -> Image.Image:
    if not data:
        raise MediaError("the image is empty (0 bytes)")
    try:
        return Image.open(cast(IO[bytes], ViewFile(memoryview(data))), formats=FORMATS)
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:
        raise MediaError("the image is too large") from error
    except Exception as error:  # as in decode
        _raise_shortage(error)
        raise MediaError(f"not an image in a supported format ({', '.join(FORMATS)})") from error


def _raise_shortage(error: Exception) -> None:
    """Pillow imports decoders when it needs them, which a lack of descriptors prevents: no fault of the picture."""
    if shortage_of(error) is not None:
        raise error


def _check_rle(image: Image.Image) -> None:
    if is_run_length_encoded(image) and image.width * image.height > _MAX_RLE_PIXELS:
        raise MediaError(f"run-length encoded BMP files of more than {_MAX_RLE_PIXELS} pixels are not supported")
