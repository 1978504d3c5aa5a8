"""Resizes pictures on a device, to Pillow's bytes: whole numbers, in two passes with bytes between them."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
from PIL import Image

from mmserve.model_backend.transfers import Transfers
from mmserve.processors.pixels.coefficients import BITS, coefficients
from mmserve.processors.pixels.resizing import columns_first
from mmserve.processors.pixels.sources import Size

_MAX_KEPT = 128
"""Lists of coefficients on the device, of some 100 KiB each."""


class PictureResize(Protocol):
    """Of one device."""

    def __call__(self, picture: torch.Tensor, size: Size, resample: Image.Resampling, /) -> torch.Tensor:
        """uint8 [height, width, 3] of the device, resized. Does not wait for the device.

        ``picture``: the numbers of a line lie next to each other. ``resample``: one of ``coefficients.FILTERS``. The
        order of the passes is Pillow's (``resizing.columns_first``), where it is known.
        """
        ...


class Weights:
    """``coefficients.Coefficients`` on the device."""

    def __init__(self, transfers: Transfers, length: int, result: int, resample: Image.Resampling) -> None:
        self.length, self.result = length, result
        self.first, self.weights = (
            transfers.to_device(torch.from_numpy(each)) for each in coefficients(length, result, resample)
        )


class TorchResize:
    """See ``PictureResize``. By torch, in many passes: what a platform's kernel is compared with."""

    def __init__(self, transfers: Transfers) -> None:
        def made(length: int, result: int, resample: Image.Resampling) -> Weights:
            return Weights(transfers, length, result, resample)

        self._weights = lru_cache(_MAX_KEPT)(made)

    def __call__(self, picture: torch.Tensor, size: Size, resample: Image.Resampling, /) -> torch.Tensor:
        height, width, _ = picture.shape
        lines = (self._lines, width, size[0])
        columns = (self._columns, height, size[1])
        for along, length, result in (columns, lines) if columns_first((width, height), size) else (lines, columns):
            if length != result:
                picture = along(picture, self._weights(length, result, resample))
        return picture

    def _lines(self, picture: torch.Tensor, weights: Weights) -> torch.Tensor:
        """[height, length, 3] -> [height, result, 3]."""
        return self._columns(picture.transpose(0, 1), weights).transpose(0, 1).contiguous()

    def _columns(self, picture: torch.Tensor, weights: Weights) -> torch.Tensor:
        """[length, width, 3] -> [result, width, 3]."""
        total = torch.full(
            (weights.result, *picture.shape[1:]), 1 << (BITS - 1), dtype=torch.int32, device=picture.device
        )
        for tap, weight in enumerate(weights.weights):
            lines = picture[(weights.first + tap).clamp(max=weights.length - 1)]
            total += lines * weight[:, None, None]
        return (total >> BITS).clamp_(0, 255).to(torch.uint8)
