"""How a picture has to be turned, by its EXIF or XMP data, before its pixels are read.

The rules are Pillow's. They are applied to what stands in front of the pixels, and to a PNG's EXIF data anywhere, so
that the header alone says which size the upright picture has.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping
from typing import Any

from PIL import Image

from mmserve.processors.image_files.segments import png_exif

SWAPS_AXES = 5
"""From this EXIF orientation on, upright rows are stored columns."""
_TAG = 0x0112
_FIELDS = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")
"""Where Pillow's formats keep metadata with an orientation."""
_MAX_EXIF_NBYTES = 1 << 16
"""EXIF data are read up to here, one segment of a JPEG: Pillow takes microseconds of Python for each field."""
_BROKEN = (SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, OSError, struct.error, UserWarning)
"""What Pillow raises for metadata that it cannot read. It warns of some, which a filter may make errors."""
warnings.filterwarnings("ignore", "(possibly )?corrupt exif data", UserWarning)


def orientation(image: Image.Image, data: bytes | memoryview) -> int:
    """Of an opened picture that is not loaded, 1 to 8. ``data``: the file.

    Raises MediaError for a PNG whose structure would take long to read.
    """
    if image.format == "TIFF" and _TAG in image.tag_v2:  # type: ignore[attr-defined]
        return 1  # Pillow turns the picture itself, and gives its upright size already
    found = png_exif(data)
    return orientation_of(image.info if found is None else {**image.info, "exif": found})


def orientation_of(info: Mapping[Any, Any]) -> int:
    """By the metadata in a Pillow image's ``info``, 1 to 8. With unreadable metadata: 1."""
    fields = {name: info[name] for name in _FIELDS if name in info}
    if not fields:
        return 1
    if "exif" in fields:
        fields["exif"] = fields["exif"][:_MAX_EXIF_NBYTES]
    probe = Image.new("1", (1, 1))
    probe.info.update(fields)
    try:
        found = probe.getexif().get(_TAG, 1)
    except _BROKEN:
        return 1
    return found if found in range(1, 9) else 1


def upright_size(width: int, height: int, turn: int) -> tuple[int, int]:
    """(width, height) after the turn of an orientation."""
    return (height, width) if turn >= SWAPS_AXES else (width, height)
