"""Token sampling by the C++ kernels, on all of their threads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from mmserve.model_backend.platforms.sampling import Draw, TorchSampling


class KernelSampling(TorchSampling):
    """See ``platforms.sampling.TokenSampling``. Chooses the tokens of ``TorchSampling``, to the bit."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        super().__init__()
        self._kernels = kernels

    def finite(self, logits: torch.Tensor) -> torch.Tensor:
        finite = torch.empty(len(logits), dtype=torch.bool)
        self._kernels.mm_finite(logits.data_ptr(), logits.stride(0), *logits.shape, finite.data_ptr())
        return finite

    def ban(self, logits: torch.Tensor, rows: Sequence[int], allowed: torch.Tensor) -> None:
        index, allowed = (ctypes.c_int64 * len(rows))(*rows), allowed.contiguous()
        banned = (index, len(rows), allowed.data_ptr(), allowed.shape[1])
        self._kernels.mm_ban(logits.data_ptr(), logits.stride(0), logits.shape[1], *banned)

    def choose(self, logits: torch.Tensor, draws: Sequence[Draw], *, may_ban: bool) -> torch.Tensor:
        chosen = torch.empty(len(logits), dtype=torch.int64)
        addresses = (_numbers_of(draws), may_ban, chosen.data_ptr())
        self._kernels.mm_sample(logits.data_ptr(), logits.stride(0), *logits.shape, *addresses)
        return chosen


def _numbers_of(draws: Sequence[Draw]) -> ctypes.Array[ctypes.c_double]:
    """As the kernels take them."""
    numbers = [number for draw in draws for number in draw.numbers]
    return (ctypes.c_double * len(numbers))(*numbers)
