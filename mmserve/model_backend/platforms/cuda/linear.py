"""Products with unquantized weights on a GPU: a residual is added by the product, not by a launch of its own."""

from __future__ import annotations

import torch

from mmserve.model_backend.platforms.reference import PlainLinear


class ResidualLinear(PlainLinear):
    """See ``PlainLinear``. With a residual and no bias the sum is rounded once."""

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        if residual is None or bias is not None or x.dim() != 2:
            return super().apply(x, bias, residual)
        return residual.addmm_(x, self.weight.T)
