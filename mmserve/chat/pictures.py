"""Pictures for a question: from files and URLs, and those whose path stands in the text of a question."""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image, UnidentifiedImageError

from mmserve.chat.conversation import ChatError

MAX_FILE_NBYTES = 40 << 20
"""In base64 it is a third larger, and servers take bodies of 64 MiB or less."""
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})


@dataclass(frozen=True)
class Picture:
    """``url``: for the server, http(s) or data. ``label``: for people."""

    url: str
    label: str


def load(place: str) -> Picture:
    """A picture from a path or URL. A file is sent as it is, a URL is fetched by the server. Raises ChatError."""
    if urlsplit(place).scheme in ("http", "https", "data"):
        return Picture(place, place if len(place) < 80 else place[:77] + "...")
    path = Path(place).expanduser()
    try:
        nbytes = path.stat().st_size
        if nbytes > MAX_FILE_NBYTES:
            raise ChatError(f"{place} has {nbytes / 2**20:.0f} MiB; the limit is {MAX_FILE_NBYTES >> 20}")
        data = path.read_bytes()
        with Image.open(path) as image:
            kind, (width, height) = Image.MIME.get(image.format or "", ""), image.size
    except UnidentifiedImageError:
        raise ChatError(f"{place} is no picture of a known format") from None
    except (OSError, Image.DecompressionBombError) as error:
        raise ChatError(f"{place}: {getattr(error, 'strerror', None) or error}") from None
    url = f"data:{kind or 'application/octet-stream'};base64,{base64.b64encode(data).decode()}"
    return Picture(url, f"{path.name} {width}x{height}, {max(1, nbytes >> 10)} kB")


def split_paths(text: str) -> tuple[str, list[str]]:
    """Take the paths of existing picture files out of a question. Returns what is left, and the paths."""
    if not any(suffix in text.lower() for suffix in _SUFFIXES):
        return text, []
    try:
        # A terminal puts quotes or backslashes into the name of a dropped file.
        words = shlex.split(text)
    except ValueError:  # a single apostrophe
        words = text.split()
    paths = [path for word in words if _is_picture(path := word.rstrip(",;:?!"))]
    for path in paths:
        written = (f"'{path}'", f'"{path}"', path.replace(" ", "\\ "), path)
        text = text.replace(next(form for form in written if form in text), "", 1)
    return (" ".join(text.split()) if paths else text), paths


def _is_picture(path: str) -> bool:
    return Path(path).suffix.lower() in _SUFFIXES and Path(path).expanduser().is_file()
