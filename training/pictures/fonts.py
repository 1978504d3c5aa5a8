"""Typefaces: those that training draws with, and those kept for the examination.

Pillow's built-in face ("") is everywhere; the DejaVu files come from the system (Debian: fonts-dejavu) or from an
installed matplotlib, which packs the same files.  This module knows nothing about scenes.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
BUILT_IN = ""
TRAINING = (
    BUILT_IN,
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSerif-Italic.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSansMono-Oblique.ttf",
)
HELD_OUT = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")


@lru_cache(maxsize=32)
def locate(name: str) -> str:
    """The path of a font file; FileNotFoundError says how to get it."""
    try:
        return str(ImageFont.truetype(name, 10).path)
    except OSError:
        package = importlib.util.find_spec("matplotlib")
        for folder in (package.submodule_search_locations or []) if package else []:
            path = Path(folder) / "mpl-data" / "fonts" / "ttf" / name
            if path.exists():
                return str(path)
    raise FileNotFoundError(f"no font {name}: install the system's DejaVu fonts (fonts-dejavu) or matplotlib")


def check(names: tuple[str, ...]) -> None:
    """FileNotFoundError where one of the files is missing, before hours are spent."""
    for name in filter(None, names):
        locate(name)


@lru_cache(maxsize=1024)
def face(name: str, size: int) -> Font:
    """A typeface at a size in pixels."""
    return ImageFont.truetype(locate(name), size) if name else ImageFont.load_default(size)
