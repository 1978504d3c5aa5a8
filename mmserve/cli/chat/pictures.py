"""Pictures for a question: from files and URLs, and those whose path stands in the text of a question."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from mmserve.cli.chat.conversation import ChatError
from mmserve.client.pictures import PictureError, is_url, read_file

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})


@dataclass(frozen=True)
class Picture:
    """``url``: for the server, http(s) or data. ``label``: for people."""

    url: str
    label: str


def load(place: str) -> Picture:
    """A picture from a path or URL. A file is sent as it is, a URL is fetched by the server. Raises ChatError."""
    if is_url(place):
        return Picture(place, place if len(place) < 80 else place[:77] + "...")
    try:
        file = read_file(Path(place))
    except PictureError as error:
        raise ChatError(str(error)) from None
    return Picture(file.url, f"{Path(place).name} {file.width}x{file.height}, {max(1, file.nbytes >> 10)} kB")


def typed_place(text: str) -> str:
    """A path or URL. A terminal writes the path of a dropped file in quotes or with backslashes."""
    if is_url(text) or Path(text).expanduser().exists():
        return text
    try:
        words = shlex.split(text)
    except ValueError:  # a single apostrophe
        return text
    return words[0] if len(words) == 1 else text


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
