"""How the views of a picture are made of it: resizings, and tiles cut from their results. Sizes alone, no pixels.

Pillow carries a plan out on the CPU (``views``), or a tower's device does (``model_backend.pictures.views``); the bytes
are the same.
"""

from __future__ import annotations

from typing import NamedTuple

from PIL import Image

from mmserve.processors.pixels.coefficients import FILTERS
from mmserve.processors.pixels.resizing import columns_first
from mmserve.processors.pixels.sources import Box, Size
from mmserve.processors.pixels.values import RGB

MAX_WHOLE_NBYTES = 8 << 20
"""Of a picture that goes to the tower's device whole although its views have fewer bytes. Decoded pictures wait for the
tower without a permit, as many as a call of it has."""


class Resizing(NamedTuple):
    """One picture made of another."""

    source: int
    """0: the decoded picture; n: the result of the n-th resizing."""
    size: Size
    box: Box | None = None
    """The part that is resized; None: all of it."""
    canvas: Size | None = None
    """Of a canvas of the background's colour, in whose middle the picture is laid; None: there is none."""


class Cut(NamedTuple):
    """A grid of tiles cut from the result of a resizing. Beyond its edges there is black."""

    source: int
    """From 1 on."""
    left: int = 0
    top: int = 0
    """Where in the picture the grid begins; less than 0 with a margin."""
    columns: int = 1
    rows: int = 1


class ViewPlan(NamedTuple):
    """Of one upright picture."""

    size: Size
    """The picture's."""
    resizings: tuple[Resizing, ...]
    cuts: tuple[Cut, ...]
    """Their tiles stand one after the other, those of a cut row by row."""
    tile: Size
    resample: Image.Resampling
    background: tuple[int, ...] = (0, 0, 0)

    @property
    def num_tiles(self) -> int:
        return sum(cut.columns * cut.rows for cut in self.cuts)

    @property
    def nbytes(self) -> int:
        """Of the views."""
        return RGB * self.num_tiles * self.tile[0] * self.tile[1]

    @property
    def whole_nbytes(self) -> int:
        """Of the picture."""
        return RGB * self.size[0] * self.size[1]

    @property
    def can_go_whole(self) -> bool:
        """Another device than the CPU may make the views.

        Not those of a picture that takes too much memory, alone or on its canvas, and not with another filter than
        ``FILTERS``, nor where it is not known in which order Pillow makes its passes.
        """
        sources = [self.source_size(each) for each in self.resizings]
        return (
            RGB * max(width * height for width, height in (self.size, *sources)) <= max(self.nbytes, MAX_WHOLE_NBYTES)
            and self.resample in FILTERS
            and None not in map(columns_first, sources, (each.size for each in self.resizings))
        )

    def source_size(self, resizing: Resizing) -> Size:
        """Of what is resized, its canvas included."""
        if resizing.canvas:
            return resizing.canvas
        if box := resizing.box:
            return box[2] - box[0], box[3] - box[1]
        return self.resizings[resizing.source - 1].size if resizing.source else self.size

    def read_last_by(self, number: int) -> list[int]:
        """Pictures that the ``number``-th resizing reads, and nothing behind it; 0 is the decoded one."""
        source = self.resizings[number - 1].source
        later = {step.source for step in self.resizings[number:]} | {cut.source for cut in self.cuts}
        return [] if source in later else [source]
