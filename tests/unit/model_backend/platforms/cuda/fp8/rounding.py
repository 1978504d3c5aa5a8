"""Rounding to FP8 by torch in place of the kernels: Triton's interpreter rounds wrongly."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from mmserve.model_backend.layers.ops import Addend
from mmserve.model_backend.platforms.cuda.attention.unmerged import Unmerged
from mmserve.model_backend.platforms.cuda.fp8 import launches, rows, trials
from mmserve.model_backend.platforms.cuda.fp8.rows import Rows, quantized
from mmserve.model_backend.platforms.torch_ops import TorchOps


def round_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also forgets what was tried before, and when the test ends what it tried."""
    monkeypatch.setattr(rows, "quantized_in_one_launch", quantized)
    monkeypatch.setattr(launches, "normed", normed)
    monkeypatch.setattr(launches, "gated", gated)
    monkeypatch.setattr(launches, "attended", attended)
    for name in ("problem_with_fp8", "works_for_checkpoints"):
        monkeypatch.setattr(trials, name, lru_cache(getattr(trials, name).__wrapped__))


def normed(hidden: torch.Tensor, weight: torch.Tensor, eps: float, addend: Addend | None, group: int | None) -> Rows:
    ops = TorchOps()
    if addend is None:
        return quantized(ops.rms_norm(hidden, weight, eps), group)
    return quantized(ops.add_normed_(hidden, addend.values, addend.norm_weight, weight, eps), group)


def attended(unmerged: Unmerged, group: int | None) -> Rows:
    return quantized(unmerged.merged().flatten(1), group)


def gated(x: torch.Tensor, gelu: bool, group: int | None) -> Rows:
    return quantized(TorchOps().act_and_mul("gelu_pytorch_tanh" if gelu else "silu")(x.clone()), group)
