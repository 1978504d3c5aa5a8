"""What can be resized: a picture, a part of a picture, a picture on a larger canvas."""

from __future__ import annotations

from typing import Protocol

from PIL import Image

Size = tuple[int, int]
"""(width, height) in pixels."""
Box = tuple[int, int, int, int]
"""(left, top, right, bottom) in pixels; right and bottom are exclusive."""


class Source(Protocol):
    """An upright picture whose parts are converted to RGB on demand. ``UprightPicture`` is one."""

    @property
    def size(self) -> Size: ...

    @property
    def plain(self) -> Image.Image | None:
        """The whole, if it exists as an RGB image already."""
        ...

    def rgb(self, left: int, top: int, right: int, bottom: int) -> Image.Image:
        """A part, mode RGB. Raises MediaError."""
        ...


class Crop:
    """A part of a picture."""

    plain: Image.Image | None = None

    def __init__(self, picture: Source, box: Box) -> None:
        self._picture = picture
        self._left, self._top = box[:2]
        self.size: Size = (box[2] - box[0], box[3] - box[1])

    def rgb(self, left: int, top: int, right: int, bottom: int) -> Image.Image:
        """A part in coordinates of the crop. Raises MediaError."""
        return self._picture.rgb(self._left + left, self._top + top, self._left + right, self._top + bottom)


class Canvas:
    """A picture in the middle of a canvas of one colour. An odd rest of the margins is on the right and below."""

    plain: Image.Image | None = None

    def __init__(self, picture: Source, size: Size, colour: tuple[int, ...]) -> None:
        self._picture = picture
        self._colour = colour
        self.size = size
        self._left, self._top = (size[0] - picture.size[0]) // 2, (size[1] - picture.size[1]) // 2

    def rgb(self, left: int, top: int, right: int, bottom: int) -> Image.Image:
        """A part in coordinates of the canvas. Raises MediaError."""
        width, height = self._picture.size
        covered = (
            max(left - self._left, 0),
            max(top - self._top, 0),
            min(right - self._left, width),
            min(bottom - self._top, height),
        )
        part = Image.new("RGB", (right - left, bottom - top), self._colour)
        if covered[0] < covered[2] and covered[1] < covered[3]:
            corner = (covered[0] + self._left - left, covered[1] + self._top - top)
            part.paste(self._picture.rgb(*covered), corner)
        return part
