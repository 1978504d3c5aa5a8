"""The way of decoded pictures to a vision tower: their bytes go to its device, and become numbers there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.vision.interface import PixelTensors, Tower
from mmserve.model_backend.vision.pixels import PixelInputs
from mmserve.processors.interface import PixelForm
from mmserve.visualserver.batches.encode import ComputeRows


def computing_rows(tower: Tower, form: PixelForm | None, platform: Platform) -> ComputeRows:
    """``form``: of the family's image processor."""
    dtype = platform.layer_context(TpGroup()).dtype
    inputs = PixelInputs(form, platform.transfers(), dtype)

    def compute(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        return tower(inputs(pictures))

    return compute
