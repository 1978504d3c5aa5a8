"""Weights with a scale for each 128 x 128 of them: what torch is told, against float64.

Torch multiplies with them on a Hopper GPU alone; ``tests.fakes.devices.scaled_products`` has its rules.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.target import LinearShard
from mmserve.model_backend.platforms.cuda.fp8.forms import BY_BLOCKS
from mmserve.model_backend.platforms.cuda.fp8.linear import Fp8Linear, StoredSource
from mmserve.model_backend.platforms.cuda.fp8.products import scales_of_weights
from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, quantized
from tests.fakes.devices.scaled_products import scaled_mm
from tests.fakes.formats.quantized_checkpoints import fp8
from tests.unit.model_backend.platforms.cuda.fp8.loading import loaded, random, scheme_of
from tests.unit.model_backend.platforms.cuda.fp8.rounding import round_by_torch

FORM = fp8(block=(GROUP, GROUP))
INPUTS = 3 * GROUP


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "scaled_mm", scaled_mm)
    round_by_torch(monkeypatch)


def shards(*parts: tuple[int, int, int]) -> dict[str, LinearShard]:
    """Of (outputs of the matrix, outputs of this rank, the first of them)."""
    found, row = {}, 0
    for index, (outputs, share, start) in enumerate(parts):
        name = f"m{index}"
        found[name] = LinearShard(name, (outputs, INPUTS), slice(row, row + share), 0, start)
        row += share
    return found


LAYERS = {
    "one matrix": shards((2 * GROUP, 2 * GROUP, 0)),
    "fused": shards((2 * GROUP, 2 * GROUP, 0), (GROUP, GROUP, 0)),
    "a rank's part": shards((4 * GROUP, 2 * GROUP, 2 * GROUP), (2 * GROUP, GROUP, GROUP)),
    "fused, cut in blocks": shards((2 * GROUP, GROUP, 64), (GROUP, 64, 64)),
    "fused, of other sizes": shards((GROUP + 32, GROUP + 32, 0), (48, 48, 0)),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("count", [1, 4, 9])
def test_products_are_those_of_the_stored_numbers_and_of_rounded_groups(
    layer: dict[str, LinearShard], count: int
) -> None:
    outputs = max(shard.rows.stop for shard in layer.values())
    made = Fp8Linear(
        StoredSource(scheme_of(FORM), LinearShape.full(outputs, INPUTS, tuple(layer))),
        BY_BLOCKS,
        torch.bfloat16,
        torch.device("cpu"),
    )
    weight = loaded(made, FORM, layer)
    x, bias, residual = (each.bfloat16() for each in (random(count, INPUTS), random(outputs), random(count, outputs)))
    x[:, :GROUP] *= 300
    numbers, scales = quantized(x, GROUP)
    rounded = (numbers.double() * scales.double().repeat_interleave(GROUP, 1))[:count]
    found = made.apply(x)
    assert found.shape == (count, outputs)
    assert found.is_contiguous()
    expected = rounded @ weight.T
    assert (found.double() - expected).norm() <= 2**-8 * expected.norm()
    expected += bias.double() + residual.double()
    assert made.apply(x, bias, residual) is residual
    assert (residual.double() - expected).norm() <= 2**-7 * expected.norm()


def test_blocks_have_one_scale_each_where_they_can() -> None:
    of_blocks = random(2, 5).abs()
    every = of_blocks.repeat_interleave(GROUP, 0)
    found = scales_of_weights(every)
    assert (found.shape, found.stride()) == ((8, 2), (1, 8))
    assert torch.equal(found[:5].T, of_blocks)
    shifted = every.roll(32, 0)
    found = scales_of_weights(shifted)
    assert torch.equal(found, shifted)
    assert found.stride() == (1, 2 * GROUP)


def test_a_layout_that_cublas_does_not_read_is_refused_by_the_stand_in() -> None:
    """So that the tests above can fail."""
    x, weight = (quantized(random(count, INPUTS), GROUP) for count in (4, 16))
    with pytest.raises(ValueError, match="strides"):
        BY_BLOCKS.product(x._replace(scales=x.scales.contiguous()), weight, None, torch.bfloat16)
    odd = quantized(random(5, INPUTS), GROUP)
    cut = odd._replace(numbers=odd.numbers[:5], scales=odd.scales[:5].T.contiguous().T)
    with pytest.raises(ValueError, match="16 bytes"):
        BY_BLOCKS.product(cut, weight, None, torch.bfloat16)
