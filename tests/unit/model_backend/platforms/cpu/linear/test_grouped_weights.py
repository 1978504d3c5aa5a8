"""Products with whole-number weights are those with the numbers they stand for, for a row alone and in any batch."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.platforms.cpu.linear import grouped_weights
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler, random
from tests.unit.model_backend.platforms.cpu.test_levels import built


def float8_matrix(outputs: int, inputs: int, group: int, seed: int) -> QuantizedMatrix:
    """Of every finite number."""
    codes = torch.randint(255, (outputs, inputs), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    codes[codes & 127 == 127] = 0
    scales = random(outputs, -(-inputs // group), seed=seed)
    return QuantizedMatrix(codes, scales, torch.zeros_like(scales).short(), group, bits=8, is_float8=True)


def matrix(
    outputs: int, inputs: int, group: int, bits: int, *, ordered: bool = False, seed: int = 0
) -> QuantizedMatrix:
    generator, groups = torch.Generator().manual_seed(seed), -(-inputs // group)
    codes = torch.randint(1 << bits, (outputs, inputs), generator=generator).to(torch.uint8)
    zeros = torch.randint((1 << bits) + 1, (outputs, groups), generator=generator).short()
    order = torch.randperm(inputs, generator=generator) if ordered else None
    return QuantizedMatrix(codes, random(outputs, groups, seed=seed), zeros, group, bits, order=order)


def weight(of: QuantizedMatrix) -> torch.Tensor:
    """float64 [out, in], inputs in ascending order."""
    group = torch.arange(of.codes.shape[1]) // of.group_size
    codes = of.codes.view(torch.float8_e4m3fn).float() if of.is_float8 else of.codes
    found = (codes.double() - of.zeros.double()[:, group]) * of.scales.double()[:, group]
    return found if of.order is None else found[:, of.order.argsort()]


def product(kernels: ctypes.CDLL, x: torch.Tensor, of: QuantizedMatrix, bias: torch.Tensor) -> torch.Tensor:
    packed, form, out = grouped_weights.pack(of), grouped_weights.format_of(of), torch.full((len(x), len(bias)), 77.0)
    addresses = (x.data_ptr(), packed.data_ptr(), form, bias.data_ptr(), out.data_ptr())
    kernels.mm_linear(*addresses, *x.shape, len(bias), 0)
    return out


@needs_compiler
@pytest.mark.parametrize("bits", [4, 8])
@given(
    rows=st.integers(1, 30),
    panels=st.integers(1, 5),
    blocks=st.integers(1, 9),
    group=st.sampled_from([32, 64, 128, 288]),
    ordered=st.booleans(),
    cuts=st.sets(st.integers(1, 29), max_size=4),
    seed=st.integers(0, 99),
)
def test_a_product_is_exact_but_for_rounded_inputs_and_the_same_in_any_batch_on_every_level(
    bits: int, rows: int, panels: int, blocks: int, group: int, ordered: bool, cuts: set[int], seed: int
) -> None:
    outputs, inputs = 16 * panels, 32 * blocks
    of = matrix(outputs, inputs, group, bits, ordered=ordered, seed=seed)
    x, bias = random(rows, inputs, seed=seed + 1), random(outputs, seed=2)
    found = same_in_any_batch_on_every_level(x, of, bias, cuts)
    # An input is rounded by at most half a step, of which the largest of its 32 has 32639.
    error = x.abs().amax(1).double()[:, None] * weight(of).abs().sum(1) / (2 * 32639) + 1e-5
    assert ((found.double() - (x.double() @ weight(of).T + bias.double())).abs() <= error).all()


def same_in_any_batch_on_every_level(
    x: torch.Tensor, of: QuantizedMatrix, bias: torch.Tensor, cuts: set[int]
) -> torch.Tensor:
    """The product, after comparing its bits: every level, whole and with the rows cut there."""
    found = [product(kernels, x, of, bias) for kernels in built().values()]
    assert all(torch.equal(each, found[0]) for each in found)
    ends = [0, *sorted(cut for cut in cuts if cut < len(x)), len(x)]
    for kernels in built().values():
        parts = [product(kernels, x[start:end].contiguous(), of, bias) for start, end in pairwise(ends)]
        assert torch.equal(torch.cat(parts), found[0])
    return found[0]


@needs_compiler
@given(
    rows=st.integers(1, 30),
    panels=st.integers(1, 5),
    blocks=st.integers(1, 9),
    group=st.sampled_from([32, 128, 288]),
    cuts=st.sets(st.integers(1, 29), max_size=4),
    seed=st.integers(0, 99),
)
def test_a_product_with_float8_is_one_in_float32_and_the_same_in_any_batch_on_every_level(
    rows: int, panels: int, blocks: int, group: int, cuts: set[int], seed: int
) -> None:
    of, bias = float8_matrix(16 * panels, 32 * blocks, group, seed), random(16 * panels, seed=2)
    x = random(rows, 32 * blocks, seed=seed + 1)
    found = same_in_any_batch_on_every_level(x, of, bias, cuts)
    error = x.abs().double() @ weight(of).abs().T * 1e-6 + 1e-5
    assert ((found.double() - (x.double() @ weight(of).T + bias.double())).abs() <= error).all()


@needs_compiler
def test_every_number_of_float8_is_widened_exactly() -> None:
    codes = torch.arange(256).to(torch.uint8)
    codes[codes & 127 == 127] = 0
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1).short()
    of = QuantizedMatrix(codes.view(16, 16).repeat(1, 2), ones, zeros, 32, bits=8, is_float8=True)
    for kernels in built().values():
        assert torch.equal(product(kernels, torch.eye(32), of, torch.zeros(16)).double(), weight(of).T)


@needs_compiler
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite_stay_so(bits: int, wrong: float) -> None:
    x = random(2, 64)
    x[1, 40] = wrong
    for kernels in built().values():
        found = product(kernels, x, matrix(16, 64, 32, bits), torch.zeros(16))
        assert found[0].isfinite().all()
        assert not found[1].isfinite().any()


@pytest.mark.parametrize(("bits", "nbytes"), [(4, 64 + 16 * (6 + 64)), (8, 64 + 16 * (6 + 128))])
def test_weights_stay_in_their_bits(bits: int, nbytes: int) -> None:
    """A group of 128 inputs has 6 bytes beside its codes."""
    assert grouped_weights.pack(matrix(16, 128, 128, bits)).nbytes == nbytes
