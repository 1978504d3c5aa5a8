"""Operations before a product in FP8, which round its inputs themselves."""

from __future__ import annotations

from functools import partial

import torch

from mmserve.model_backend.layers.linear_method import LinearMethod
from mmserve.model_backend.layers.ops import Addend, GatedProduct, Product
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

    def gated_product(self, name: str) -> GatedProduct:
        plain = super().gated_product(name)
        return partial(_gated_product, plain, GATES[name]) if name in GATES else plain


def _gated_product(
    plain: GatedProduct,
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
