"""Products that add a residual in the same launch compute what torch does in two."""

from __future__ import annotations

import pytest
import torch

from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.platforms.cuda.linear import ResidualLinear

CPU = torch.device("cpu")


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_the_product_is_added_to_the_residual_in_place(rows: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((rows, 24), (40, 24), (40,)))
    linear = ResidualLinear(LinearShape.full(40, 24), torch.float32, CPU)
    linear.weight.copy_(weight)
    whole = torch.randn(rows + 2, 40, generator=generator)
    expected, residual = whole.clone(), whole[1 : rows + 1]
    expected[1 : rows + 1] += x @ weight.T + (bias if with_bias else 0)
    assert linear.apply(x, bias if with_bias else None, residual) is residual
    torch.testing.assert_close(whole, expected)


def test_half_precision_rounds_the_sum_once() -> None:
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(5, size, generator=generator).bfloat16() for size in (64, 32))
    linear = ResidualLinear(LinearShape.full(32, 64), torch.bfloat16, CPU)
    linear.weight.copy_(torch.randn(32, 64, generator=generator))
    exact = residual.double() + x.double() @ linear.weight.double().T
    plain = residual + torch.nn.functional.linear(x, linear.weight)
    found = linear.apply(x, None, residual.clone())
    assert (found.double() - exact).norm() <= (plain.double() - exact).norm()
