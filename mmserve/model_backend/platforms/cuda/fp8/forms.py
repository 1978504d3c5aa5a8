"""The two ways in which scales lie."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mmserve.model_backend.platforms.cuda.fp8 import products, rows
from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, Rows


class Form(NamedTuple):
    """``group``: as ``rows.empty_rows`` has it, of inputs."""

    group: int | None

    def quantized(self, x: torch.Tensor) -> Rows:
        return rows.quantized_in_one_launch(x, self.group)

    def product(self, x: Rows, weight: Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        compute = products.by_rows if self.group is None else products.by_blocks
        return compute(x, weight, bias, dtype)


BY_ROWS, BY_BLOCKS = Form(None), Form(GROUP)
