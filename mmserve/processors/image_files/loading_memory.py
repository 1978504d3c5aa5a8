"""Estimated peak memory of Pillow's decoders, measured for each format and mode (docs/design/images.md)."""

from __future__ import annotations

from PIL import Image

_SMALL_MODES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
_PIXEL_NBYTES = 4
"""Of every other mode."""
_WEBP_PIXEL_NBYTES = {"RGB": 16, "RGBA": 18}
"""Two canvases in libwebp, the frame as bytes, the picture; the alpha plane and its filter."""
_RLE_PIXEL_NBYTES = 4
"""The lines as bytearray and as bytes, the picture, and room for the bytearray to grow."""
_RLE_DECODER = "bmp_rle"
_UNKNOWN_JPEG_PIXEL_NBYTES = 16
"""A JPEG whose markers are unusual: 4 components, each with 2 bytes of coefficients, and the edges."""
_ORIENTATION, _ROWS_PER_STRIP, _BITS, _SAMPLES = 274, 278, 258, 277
_PHOTOMETRIC, _YCBCR = 262, 6
_TILE_WIDTH, _TILE_HEIGHT = 322, 323


def image_nbytes(mode: str, pixels: int) -> int:
    """Memory of a Pillow image."""
    return _SMALL_MODES.get(mode, _PIXEL_NBYTES) * pixels


def loading_nbytes(image: Image.Image, data_nbytes: int) -> int:
    """Peak memory of loading an image that was opened from ``data_nbytes`` bytes, itself included."""
    pixels, decoder = image.width * image.height, _decoder(image)
    match image.format:
        case "WEBP":
            return _WEBP_PIXEL_NBYTES.get(image.mode, 18) * pixels + data_nbytes
        case "TIFF":
            copies = 1 if _tag(image, _ORIENTATION, 1) == 1 else 2  # Pillow turns it upright itself
            buffers = _libtiff_nbytes(image) + data_nbytes if decoder == "libtiff" else 0
            return copies * image_nbytes(image.mode, pixels) + buffers
        case "JPEG" | "MPO":
            return _UNKNOWN_JPEG_PIXEL_NBYTES * pixels
        case "BMP" if decoder == _RLE_DECODER:
            return _RLE_PIXEL_NBYTES * pixels
    return image_nbytes(image.mode, pixels)


def is_run_length_encoded(image: Image.Image) -> bool:
    """True for a BMP that Pillow decodes in Python."""
    return _decoder(image) == _RLE_DECODER


def _decoder(image: Image.Image) -> str:
    """Name of Pillow's decoder for an image that is not loaded."""
    tiles = getattr(image, "tile", ())
    return tiles[0][0] if tiles else ""


def _libtiff_nbytes(image: Image.Image) -> int:
    """One strip or tile, which libtiff decompresses as a whole. It may be larger than the picture."""
    pixel_nbytes = -(-_tag(image, _BITS, 1) * _tag(image, _SAMPLES, 1) // 8)
    if _tag(image, _PHOTOMETRIC, 0) == _YCBCR:  # decompressed to RGBA
        pixel_nbytes = _PIXEL_NBYTES
    rows = min(_tag(image, _ROWS_PER_STRIP, image.height), max(image.size))
    tile_pixels = _tag(image, _TILE_WIDTH, 0) * _tag(image, _TILE_HEIGHT, 0)
    return pixel_nbytes * max(max(image.size) * rows, tile_pixels)


def _tag(image: Image.Image, tag: int, default: int) -> int:
    """The largest value of a TIFF tag, or the default if the file has none that makes sense."""
    value = image.tag_v2.get(tag, default)  # type: ignore[attr-defined]
    value = max(value, default=default) if isinstance(value, tuple) else value
    return int(value) if isinstance(value, (int, float)) and value >= 0 else default
