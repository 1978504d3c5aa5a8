"""Products with GGUF's formats are those with the numbers they stand for, for a row alone and in any batch."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmserve.checkpoint.gguf.tensor_types import QUANTIZED
from mmserve.model_backend.platforms.cpu.linear import gguf_weights
from mmserve.runtime.errors import StartupError
from tests.fakes.formats.gguf_formats import BLOCK_FORMATS, stored
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler, random
from tests.unit.model_backend.platforms.cpu.test_levels import built

Matrix = tuple[str, torch.Tensor]
"""A format, and rows in it."""


def matrix(kind: str, outputs: int, inputs: int, seed: int = 0) -> tuple[Matrix, torch.Tensor]:
    """And the numbers that it stands for."""
    found = stored(random(outputs, inputs, seed=seed).numpy(), kind)
    rows = torch.frombuffer(bytearray(found.data), dtype=torch.uint8).view(outputs, -1)
    return (kind, rows), torch.from_numpy(found.numbers)


def product(kernels: ctypes.CDLL, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(x), len(bias)), 77.0)
    addresses = (x.data_ptr(), packed.data_ptr(), gguf_weights.FORMAT, bias.data_ptr(), out.data_ptr())
    kernels.mm_linear(*addresses, *x.shape, len(bias), 0)
    return out


def rows_of(kernels: ctypes.CDLL, packed: torch.Tensor, indices: torch.Tensor, inputs: int) -> torch.Tensor:
    out = torch.full((len(indices), inputs), 77.0)
    kernels.mm_rows(packed.data_ptr(), gguf_weights.FORMAT, indices.data_ptr(), out.data_ptr(), *out.shape)
    return out


@needs_compiler
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_a_row_is_the_numbers_of_the_file_to_the_bit_on_every_level(kind: str) -> None:
    one, numbers = matrix(kind, 48, 512)
    packed, indices = gguf_weights.pack([one]), torch.tensor([47, 0, 17, 17, 31])
    for kernels in built().values():
        assert torch.equal(rows_of(kernels, packed, indices, 512), numbers[indices])


@needs_compiler
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_the_numbers_are_those_of_the_gguf_package(kind: str) -> None:
    quants = pytest.importorskip("gguf.quants", reason="the gguf package is not installed")
    one, numbers = matrix(kind, 16, 512, seed=3)
    expected = quants.dequantize(one[1].numpy(), quants.GGMLQuantizationType[kind])
    assert np.array_equal(expected, numbers.numpy())
    kernels = next(iter(built().values()))
    found = rows_of(kernels, gguf_weights.pack([one]), torch.arange(16), 512)
    assert np.array_equal(found.numpy(), expected)


@needs_compiler
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
@given(
    rows=st.integers(1, 20),
    panels=st.integers(1, 4),
    blocks=st.integers(1, 5),
    cuts=st.sets(st.integers(1, 19), max_size=4),
    seed=st.integers(0, 99),
)
def test_a_product_is_exact_but_for_rounded_inputs_and_the_same_in_any_batch_on_every_level(
    kind: str, rows: int, panels: int, blocks: int, cuts: set[int], seed: int
) -> None:
    one, numbers = matrix(kind, 16 * panels, QUANTIZED[kind].block * blocks, seed)
    x, bias = random(rows, numbers.shape[1], seed=seed + 1), random(len(numbers), seed=2)
    packed = gguf_weights.pack([one])
    found = [product(kernels, x, packed, bias) for kernels in built().values()]
    assert all(torch.equal(each, found[0]) for each in found)
    ends = [0, *sorted(cut for cut in cuts if cut < rows), rows]
    for kernels in built().values():
        parts = [product(kernels, x[start:end].contiguous(), packed, bias) for start, end in pairwise(ends)]
        assert torch.equal(torch.cat(parts), found[0])
    # An input is rounded by at most half a step, of which the largest of its 32 has 32639. Where a format has minima,
    # its two sums are larger than their difference: their rounding shows.
    error = x.abs().amax(1).double()[:, None] * numbers.double().abs().sum(1) / (2 * 32639)
    error += 1e-6 * (x.double().abs() @ numbers.double().abs().T) + 1e-4
    assert ((found[0].double() - (x.double() @ numbers.double().T + bias.double())).abs() <= error).all()


@needs_compiler
def test_matrices_of_several_formats_are_one_layer() -> None:
    """As a file of mixed types has queries and keys in another format than values."""
    matrices, numbers = zip(*(matrix(kind, 16 * n, 256, n) for n, kind in enumerate(BLOCK_FORMATS, 1)), strict=True)
    packed, whole = gguf_weights.pack(matrices), torch.cat(numbers)
    x, bias = random(5, 256, seed=9), random(len(whole), seed=2)
    for kernels in built().values():
        error = (product(kernels, x, packed, bias) - (x @ whole.T + bias)).abs().max()
        assert error < 1e-2 * float(whole.abs().max())
        assert torch.equal(rows_of(kernels, packed, torch.arange(len(whole)), 256), whole)


@needs_compiler
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite_stay_so(kind: str, wrong: float) -> None:
    (one, _), x = matrix(kind, 16, 256), random(2, 256)
    x[1, 40] = wrong
    for kernels in built().values():
        found = product(kernels, x, gguf_weights.pack([one]), torch.zeros(16))
        assert found[0].isfinite().all()
        assert not found[1].isfinite().any()


@needs_compiler
def test_scales_of_tiny_numbers_are_exact_on_every_level() -> None:
    """Halves below 2^-14 have fewer bits."""
    found = stored(random(16, 256).numpy() * np.float32(1e-6), "Q8_0")
    rows, numbers = torch.frombuffer(bytearray(found.data), dtype=torch.uint8).view(16, -1), found.numbers
    assert (numbers != 0).any()
    for kernels in built().values():
        packed = gguf_weights.pack([("Q8_0", rows)])
        assert np.array_equal(rows_of(kernels, packed, torch.arange(16), 256).numpy(), numbers)


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_a_scale_that_is_not_finite_is_refused(kind: str) -> None:
    (_, rows), _ = matrix(kind, 16, 256)
    place = rows.shape[1] - 2 if kind == "Q6_K" else 0
    rows[3, place : place + 2] = torch.tensor([0, 0x7C], dtype=torch.uint8)  # infinite
    with pytest.raises(StartupError, match="not finite"):
        gguf_weights.pack([(kind, rows)])


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("Q4_0", 4.5),
        ("Q4_1", 5),
        ("Q5_0", 5.5),
        ("Q5_1", 6),
        ("Q8_0", 8.5),
        ("Q4_K", 4.625),
        ("Q5_K", 5.625),
        ("Q6_K", 6.5625),
    ],
)
def test_weights_stay_in_their_bits(kind: str, bits: float) -> None:
    """Scales and minima of 6 bits have 8."""
    one, _ = matrix(kind, 256, 512)
    header_nbytes = 64
    assert gguf_weights.pack([one]).nbytes - header_nbytes == bits * 256 * 512 / 8
