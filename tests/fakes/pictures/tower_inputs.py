"""What a vision tower on the CPU reads of pictures, made as a visual server makes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.vision.interface import PixelTensors, ViewTensors
from mmserve.model_backend.vision.pixels import PixelInputs
from mmserve.processors.interface import ImageProcessor, Views


class Numbers(NamedTuple):
    """Of one picture."""

    values: npt.NDArray[np.float32]
    grids: npt.NDArray[np.int32]


def numbers(processor: ImageProcessor, data: bytes) -> Numbers:
    """Of a compressed picture. Raises MediaError."""
    views = processor.views(data)
    assert views.pixels.dtype == np.uint8
    assert views.pixels.flags.c_contiguous
    (read,) = read_by_tower(processor, [views])
    return Numbers(read.values.numpy(), views.grids)


def read_by_tower(processor: ImageProcessor, pictures: Sequence[Views]) -> list[ViewTensors]:
    """Of decoded pictures."""
    inputs = PixelInputs(processor.form, PlainTransfers(torch.device("cpu")), torch.float32)
    return inputs([PixelTensors.of(each) for each in pictures]) if pictures else []
