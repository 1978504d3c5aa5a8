"""A row of a product has the same bits however many rows are computed with it: their number decides which loop runs."""

from __future__ import annotations

import pytest
import torch

from mmserve.model_backend.platforms.cpu.library import build, levels
from mmserve.model_backend.platforms.cpu.linear.packed_weights import format_of, pack
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler, random

pytestmark = needs_compiler
OUTPUTS = 45
"""A whole panel and a part of one."""
MOST_ROWS = 14


@pytest.mark.parametrize("level", levels.of_this_cpu(), ids=lambda level: level.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inputs", [1, 2, 3, 4, 5, 7, 8, 9, 30, 67])
def test_a_row_has_the_bits_that_it_has_alone(level: levels.Level, dtype: torch.dtype, inputs: int) -> None:
    kernels = build.build_and_load(level)
    weight, bias = random(OUTPUTS, inputs).to(dtype).float(), random(OUTPUTS, seed=1)
    panels, x = pack(weight), random(MOST_ROWS, inputs, seed=2)

    def product(rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(rows), OUTPUTS)
        addresses = (rows.data_ptr(), panels.data_ptr(), format_of(panels), bias.data_ptr(), out.data_ptr())
        kernels.mm_linear(*addresses, *rows.shape, OUTPUTS, 0)
        return out

    alone = torch.cat([product(row[None]) for row in x])
    torch.testing.assert_close(alone, torch.addmm(bias, x, weight.T), rtol=1e-5, atol=1e-5)
    for count in range(2, MOST_ROWS + 1):
        assert torch.equal(product(x[:count]), alone[:count])
