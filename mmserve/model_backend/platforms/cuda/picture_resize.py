"""Resizes pictures on a GPU where Triton's kernels give Pillow's bytes."""

from __future__ import annotations

import logging

import numpy as np
import torch
import triton
from PIL import Image

from mmserve.model_backend.pictures.resize import PictureResize, TorchResize, Weights
from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.kernels.resample import resample_columns, resample_lines
from mmserve.model_backend.platforms.cuda.trying import problem_of
from mmserve.model_backend.transfers import Transfers
from mmserve.processors.pixels.coefficients import FILTERS

_TILE = 1024
"""Bytes of a program."""
_TRIALS = (17, 12), (60, 33), (60, 12)
"""Sizes of the self-test's results, from 41 x 29: both sides shorter, both longer, the passes in the other order."""

logger = logging.getLogger(__name__)


class TritonResize(TorchResize):
    """See ``pictures.resize.PictureResize``. One launch for each axis whose length changes."""

    def _lines(self, picture: torch.Tensor, weights: Weights) -> torch.Tensor:
        height, outputs = len(picture), weights.result
        result = torch.empty(height, outputs, 3, dtype=torch.uint8, device=picture.device)
        numbers = picture.stride(0), weights.length, outputs, len(weights.weights)
        with current_gpu(picture):
            resample_lines[(height, triton.cdiv(3 * outputs, _TILE))](
                *(picture, weights.first, weights.weights, result, *numbers), TILE=_TILE
            )
        return result

    def _columns(self, picture: torch.Tensor, weights: Weights) -> torch.Tensor:
        width, outputs = picture.shape[1], weights.result
        result = torch.empty(outputs, width, 3, dtype=torch.uint8, device=picture.device)
        numbers = picture.stride(0), weights.length, outputs, 3 * width, len(weights.weights)
        with current_gpu(picture):
            resample_columns[(outputs, triton.cdiv(3 * width, _TILE))](
                *(picture, weights.first, weights.weights, result, *numbers), TILE=_TILE
            )
        return result


def working_resize(transfers: Transfers) -> PictureResize | None:
    """The kernels if they give Pillow's bytes on this device. Else pictures are resized before they come here."""
    resize = TritonResize(transfers)
    if not (problem := problem_of(lambda: _problem(resize, transfers))):
        return resize
    logger.warning("pictures are resized by Pillow, not by the kernel: %s", problem)
    return None


def _problem(resize: PictureResize, transfers: Transfers) -> str:
    return "" if all(_same_bytes(resize, transfers, resample) for resample in FILTERS) else "other bytes"


def _same_bytes(resize: PictureResize, transfers: Transfers, resample: Image.Resampling) -> bool:
    noise = np.random.default_rng(0).integers(0, 256, (29, 41, 3), np.uint8)
    picture = transfers.to_device(torch.from_numpy(noise))
    found = [transfers.to_host(resize(picture, size, resample)).wait().numpy() for size in _TRIALS]
    plain = [np.asarray(Image.fromarray(noise).resize(size, resample)) for size in _TRIALS]
    return all(np.array_equal(*pair) for pair in zip(found, plain, strict=True))
