"""Parts of a decoded picture, upright and in RGB.

The picture stays as its decoder left it: turned, with a palette, with transparency. Only the part that is asked for is
turned and converted. A converted copy of the whole would take up to five times the memory.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from mmserve.processors.image_files.orientation import SWAPS_AXES, upright_size
from mmserve.runtime.errors import MediaError

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_FROM_RIGHT = frozenset({2, 3, 7, 8})
_FROM_BOTTOM = frozenset({3, 4, 6, 7})
"""Orientations whose first upright column or row comes from the stored picture's right or lower edge."""


class UprightPicture:
    """A loaded Pillow image and its EXIF orientation (1 to 8). ``size`` is that of the upright picture."""

    def __init__(self, image: Image.Image, orientation: int = 1) -> None:
        self._image = image
        self._orientation = orientation
        self.size = upright_size(*image.size, orientation)

    @property
    def plain(self) -> Image.Image | None:
        """The whole picture, if it is upright RGB already."""
        image = self._image
        return image if self._orientation == 1 and image.mode == "RGB" and not _has_alpha(image) else None

    def rgb(self, left: int, top: int, right: int, bottom: int) -> Image.Image:
        """A part in upright coordinates, mode RGB, transparency composited onto white. Raises MediaError."""
        if self._orientation >= SWAPS_AXES:
            left, top, right, bottom = top, left, bottom, right
        width, height = self._image.size
        if self._orientation in _FROM_RIGHT:
            left, right = width - right, width - left
        if self._orientation in _FROM_BOTTOM:
            top, bottom = height - bottom, height - top
        try:
            part = self._image.crop((left, top, right, bottom))
            return _to_rgb(part.transpose(_TURNS[self._orientation]) if self._orientation > 1 else part)
        except (MediaError, MemoryError):
            raise
        except Exception as error:  # a colour model that Pillow cannot convert, or broken metadata
            raise MediaError(f"the image cannot be converted to RGB from {self._image.mode}") from error


def _has_alpha(image: Image.Image) -> bool:
    bands = image.getbands()
    return "A" in bands or "a" in bands or image.info.get("transparency") is not None


def _to_rgb(image: Image.Image) -> Image.Image:
    """Composites alpha like transformers' ``convert_to_rgb``. 16-bit grey keeps its high byte; Pillow would clip it."""
    if image.mode.startswith("I") or image.mode == "F":
        image = _grey_from_16_bit(image)
    if _has_alpha(image):
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey_from_16_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
        raise MediaError("pixels of more than 16 bits or with fractions are not supported")
    return Image.fromarray((values >> 8).astype(np.uint8))
