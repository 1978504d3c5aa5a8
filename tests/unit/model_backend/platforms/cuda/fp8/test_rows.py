"""Numbers rounded to FP8: by torch against the definition, and the kernel in Triton's interpreter against torch."""

from __future__ import annotations

import pytest
import torch

from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, quantized, quantized_in_one_launch
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("group", [None, GROUP])
def test_each_group_fills_the_range_and_is_near_its_numbers(group: int | None) -> None:
    x = random(3, 3 * GROUP) * torch.logspace(-4, 3, 3 * GROUP)
    numbers, scales = quantized(x, group)
    widths = x.unflatten(1, (-1, group or 3 * GROUP))
    found = numbers.double()[:3].unflatten(1, widths.shape[1:]) * scales[:3, :, None].double()
    assert (found - widths).abs().le(widths.abs() * 2**-4 + scales[:3, :, None] * 2**-10).all()
    assert numbers.float()[:3].abs().unflatten(1, widths.shape[1:]).amax(2).eq(448).all()


def test_rows_with_groups_are_filled_up_for_16_bytes_of_scales() -> None:
    numbers, scales = quantized(random(5, 2 * GROUP), GROUP)
    assert (numbers.shape, scales.shape, scales.stride()) == ((8, 2 * GROUP), (8, 2), (1, 8))
    assert not numbers[5:].float().any()
    assert scales.isfinite().all()


@needs_interpreter
@pytest.mark.parametrize(("size", "group"), [(64, None), (45, None), (GROUP, GROUP), (3 * GROUP, GROUP)])
def test_the_kernel_finds_the_numbers_and_scales_that_torch_finds(size: int, group: int | None) -> None:
    """Of numbers that FP8 holds, times a power of two for each row: the interpreter rounds others wrongly."""
    x = random(5, size + 3)[:, :size]
    numbers, _ = quantized(x, group)
    x.copy_(numbers[:5].float() * torch.tensor([[2.0**-9], [1.0], [8.0], [0.25], [2.0]]))
    x.unflatten(1, (-1, group or size))[:, -1:] *= 4
    expected, found = quantized(x, group), quantized_in_one_launch(x, group)
    assert torch.equal(found.numbers.float(), expected.numbers.float())
    assert torch.equal(found.scales, expected.scales)
    assert found.scales.stride() == expected.scales.stride()


def test_no_rows() -> None:
    for group in (None, GROUP):
        assert quantized_in_one_launch(torch.empty(0, GROUP), group).numbers.shape == (0, GROUP)
