"""Pictures of models that transformers' modules compute: they are processed with the tower, from whole pictures."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.messages.media import ExpandedImage
from mmserve.processors.image_files.picture import decode
from mmserve.processors.interface import Expansion, ImageProcessor, PixelForm, Run, Views
from mmserve.runtime.errors import MediaError, StartupError

_PIXEL_NBYTES = 3 * (1 + 1 + 4)
"""RGB as bytes in Pillow and numpy, and while the tower resizes it."""
_ONE_VIEW = np.ones((1, 3), np.int32)


def processor(model: ModelSpec) -> WholePictures:
    """Raises StartupError for a setting that the user has changed."""
    if model.processor_options:
        raise StartupError("--mm-processor-kwargs does not go with a model that transformers' modules compute")
    return WholePictures(model)


def counted(vision: GenericVision, image: ExpandedImage) -> Expansion:
    """Of a picture that a visual server has expanded. Raises MediaError for too many rows."""
    expansion = Expansion(image.text, tuple(Run(math.prod(grid), grid) for grid in image.grids))
    if (num_rows := expansion.num_rows) > vision.max_rows:
        raise MediaError(f"the image takes {num_rows} tokens, more than the {vision.max_rows} that this server expects")
    return expansion


class WholePictures:
    """The view of a picture is itself, upright."""

    form: PixelForm | None = None

    def __init__(self, model: ModelSpec) -> None:
        assert isinstance(model.vision, GenericVision)
        self._vision = model.vision
        self.placeholder, self.row_token = model.vision.placeholder, model.image_token
        self.max_rows = model.vision.max_rows
        self.request_options = frozenset[str]()
        self._expansion = Expansion(model.vision.expansion, tuple(Run(n, (1, 1, n)) for n in model.vision.rows))

    def within(self, rows: int) -> Mapping[str, Any] | None:
        """Every picture has the same number of rows."""
        return None

    def among(self, count: int) -> ImageProcessor:
        return self

    def expand(self, width: int, height: int) -> Expansion:
        """Of a model whose pictures all have the same rows. For others, ask a visual server (``counted``)."""
        assert self._vision.rows, "the rows of this picture must be counted by a visual server"
        return self._expansion

    def views(self, data: bytes | memoryview, *, whole: bool = False) -> Views:
        """In either way. Raises MediaError."""
        picture = decode(data)
        return Views(np.array(picture.rgb(0, 0, *picture.size))[None], _ONE_VIEW)

    def decoded_nbytes(self, width: int, height: int, loading_nbytes: int, *, whole: bool = False) -> int:
        """See ``ImageProcessor``."""
        return loading_nbytes + _PIXEL_NBYTES * width * height

    def settings_digest(self) -> bytes:
        """The content key has the checkpoint's path."""
        return hashlib.sha256(b"transformers-1\0" + msgspec.json.encode(self._vision)).digest()
