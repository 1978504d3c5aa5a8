"""Operations before a product in FP8, which round its inputs themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from mmserve.model_backend.attention.interface import AttentionBackend, AttentionStep
from mmserve.model_backend.layers.linear_method import LinearMethod
from mmserve.model_backend.layers.ops import Addend, Attended, Multiply, Product
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.attention.unmerged import Unmerged
from mmserve.model_backend.platforms.cuda.fp8 import launches
from mmserve.model_backend.platforms.cuda.fp8.linear import Fp8Linear
from mmserve.model_backend.platforms.cuda.row_ops import GATES, RowOps, fits


class Fp8Ops(RowOps):
    """See ``layers.ops.Ops``. A layer in FP8 exists where ``trials`` have shown that these kernels compute."""

    def normed_product(
        self, hidden: torch.Tensor, weight: torch.Tensor, eps: float, product: Product, addend: Addend | None = None
    ) -> torch.Tensor:
        method = product.method
        if not isinstance(method, Fp8Linear) or not fits(hidden) or not (addend is None or fits(addend.values)):
            return super().normed_product(hidden, weight, eps, product, addend)
        rows = launches.normed(hidden, weight, eps, addend, method.form.group)
        return method.product(rows, len(hidden), product.bias)

    def attended(self, backend: AttentionBackend[Any], step: AttentionStep, method: LinearMethod) -> Attended:
        if not isinstance(method, Fp8Linear) or not isinstance(backend, TritonAttention) or not len(step.q):
            return super().attended(backend, step, method)
        unmerged = backend.unmerged(*step)
        return Attended(unmerged.out.flatten(1), partial(_attended_product, unmerged))

    def gated_product(self, name: str) -> Multiply:
        plain = super().gated_product(name)
        return partial(_gated_product, plain, GATES[name]) if name in GATES else plain


def _attended_product(
    unmerged: Unmerged,
    method: LinearMethod,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    assert isinstance(method, Fp8Linear), "the layer has other weights than when attention began"
    out = method.product(launches.attended(unmerged, method.form.group), len(x), bias)
    return out if residual is None else residual.add_(out)


def _gated_product(
    plain: Multiply,
    gelu: bool,
    method: LinearMethod,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    if not isinstance(method, Fp8Linear) or x.dim() != 2 or not x.numel() or x.stride(1) != 1:
        return plain(method, x, bias, residual)
    out = method.product(launches.gated(x, gelu, method.form.group), len(x), bias)
    return out if residual is None else residual.add_(out)
