"""What a model family says about its pictures: their rows in the prompt, and what its vision tower reads of them.

HTTP workers ask for expansions, estimates of memory and digests; visual servers ask for views. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmserve.messages.media import Grid
from mmserve.processors.pixels.view_plan import ViewPlan


class Run(NamedTuple):
    """Consecutive embedding rows of a picture in the prompt."""

    rows: int
    grid: Grid
    """Of the rows, for rotary positions: t * h * w = rows. (1, 1, rows) where the family has no grid."""


class Expansion(NamedTuple):
    """What a picture becomes in the prompt."""

    text: str
    """Stands in the place of the template's placeholder. It holds the row token once for each run."""
    runs: tuple[Run, ...]

    @property
    def num_rows(self) -> int:
        return sum(run.rows for run in self.runs)


class PixelForm(NamedTuple):
    """How the bytes of ``Views`` become the numbers that a vision tower reads, on the tower's device."""

    values: npt.NDArray[np.float32]
    """[3, 256]: the number of each byte of each channel, rescaled and normalized."""
    side: int = 0
    """Of a patch, in pixels; 0: the tower reads tiles, as planes."""
    block: int = 1
    """Patches stand row by row in blocks of ``block`` x ``block``, and the blocks row by row."""
    frames: int = 1
    """Copies of the picture in each patch."""


class Views(NamedTuple):
    """What the vision tower reads of one picture, as bytes."""

    pixels: npt.NDArray[np.uint8]
    """RGB, C-contiguous: tiles [k, S, S, 3], or the resized picture [1, height, width, 3] of a patch tower."""
    grids: npt.NDArray[np.int32]
    """[views, 3]. Of a patch tower: (t, h, w) of each view in patches. Of a tile tower: (1, rows, columns) of a grid of
    tiles, without the tile of the whole picture; or (1, 1, 1) for each of its views."""
    plan: ViewPlan | None = None
    """None: the pixels are the views. Else they are the picture itself, upright, [1, height, width, 3], of which the
    tower's device makes the views."""


class ImageProcessor(Protocol):
    """Image processing of one model with one set of settings. Made by ``registry.processor_for``."""

    @property
    def placeholder(self) -> str:
        """What the chat template writes for a picture."""
        ...

    @property
    def row_token(self) -> str:
        """The token that stands for a run in ``Expansion.text``. Its id is ``ModelSpec.image_token_id``."""
        ...

    @property
    def max_rows(self) -> int:
        """Rows of the picture that has the most."""
        ...

    @property
    def request_options(self) -> frozenset[str]:
        """Names of the settings that a request may change."""
        ...

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """Settings, other than its own, with which no picture has more than ``rows`` rows; None if there are none."""
        ...

    def among(self, count: int) -> ImageProcessor:
        """For the pictures of a request that has ``count`` of them; itself in most families."""
        ...

    def expand(self, width: int, height: int) -> Expansion:
        """For an upright picture of this size. Raises MediaError."""
        ...

    @property
    def form(self) -> PixelForm | None:
        """The same for all settings that a request may change. None: the tower takes the bytes themselves."""
        ...

    def views(self, data: bytes | memoryview, *, whole: bool = False) -> Views:
        """Decode and process a compressed picture. Raises MediaError.

        ``whole``: the tower's device can make the views, so a picture for which that is right is only decoded.
        """
        ...

    def decoded_nbytes(self, width: int, height: int, loading_nbytes: int, *, whole: bool = False) -> int:
        """Estimated peak memory of ``views`` for a picture of this size, the result included. Raises MediaError.

        ``loading_nbytes``: of its decoder, from ``picture.Header``. ``whole``: the most that either way takes.
        """
        ...

    def settings_digest(self) -> bytes:
        """32 bytes. Differs if the same file would give different views or rows."""
        ...
