"""Pictures as URLs in a request: from paths, URLs, bytes, Pillow's images and arrays."""

from __future__ import annotations

import base64
import io
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from PIL import Image, UnidentifiedImageError

if TYPE_CHECKING:
    import numpy as np

Picture: TypeAlias = "str | PathLike[str] | bytes | Image.Image | np.ndarray[Any, Any]"
"""A path, a URL, the bytes of a file, a Pillow image, or pixels: height x width (x 3 or 4) of uint8."""
MAX_FILE_NBYTES = 40 << 20
"""In base64 it is a third larger, and servers take bodies of 64 MiB or less."""


class Encoded(NamedTuple):
    """A picture as a data: URL. Sizes in pixels, and bytes before base64."""

    url: str
    width: int
    height: int
    nbytes: int


class PictureError(Exception):
    """What was given is no picture that can be sent. One line."""


def is_url(place: str) -> bool:
    """Whether a server fetches the picture, or has it in the URL itself; else ``place`` is a path."""
    return urlsplit(place).scheme in ("http", "https", "data")


def url_of(picture: Picture) -> str:
    """The URL of a picture in a request: its own, or a data: URL. Raises PictureError."""
    if isinstance(picture, str) and is_url(picture):
        return picture
    if isinstance(picture, str | PathLike):
        return read_file(Path(picture)).url
    if isinstance(picture, bytes | bytearray | memoryview):
        return _data_url(bytes(picture), "these bytes").url
    if not isinstance(picture, Image.Image):
        picture = _of_pixels(picture)
    buffer = io.BytesIO()
    try:
        picture.save(buffer, "PNG", compress_level=1)
    except (OSError, ValueError) as error:
        raise PictureError(f"an image of mode {picture.mode} cannot be sent: {error}") from None
    return _data_url(buffer.getvalue(), "the image").url


def read_file(path: Path) -> Encoded:
    """A file, which is sent as it is. Raises PictureError."""
    path = path.expanduser()
    try:
        nbytes = path.stat().st_size
        if nbytes > MAX_FILE_NBYTES:
            raise PictureError(f"{path} has {nbytes / 2**20:.0f} MiB; the limit is {MAX_FILE_NBYTES >> 20}")
        data = path.read_bytes()
    except OSError as error:
        raise PictureError(f"{path}: {error.strerror or error}") from None
    return _data_url(data, str(path))


def _data_url(data: bytes, name: str) -> Encoded:
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind, size = Image.MIME.get(image.format or "", "application/octet-stream"), image.size
    except UnidentifiedImageError:
        raise PictureError(f"{name}: no picture of a known format") from None
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise PictureError(f"{name}: {error}") from None
    return Encoded(f"data:{kind};base64,{base64.b64encode(data).decode()}", *size, len(data))


def _of_pixels(pixels: Any) -> Image.Image:
    shape, dtype = getattr(pixels, "shape", None), getattr(pixels, "dtype", None)
    if shape is None:
        raise PictureError(f"a {type(pixels).__name__} is no picture: give a path, URL, bytes, image or array")
    if str(dtype) != "uint8" or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))):
        raise PictureError(f"an array of {dtype} and shape {tuple(shape)} is no picture: uint8, height x width (x 3)")
    return Image.fromarray(pixels)
