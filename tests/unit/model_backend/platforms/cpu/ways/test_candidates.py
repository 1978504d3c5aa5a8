"""Every way of a product gives the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch

from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.platforms.cpu.linear import gguf_weights, grouped_weights, quantization
from mmserve.model_backend.platforms.cpu.linear.packed_weights import TILED, format_of, pack, pack_short
from mmserve.model_backend.platforms.cpu.ways.candidates import MAX_ROWS, Product, Way, candidates, default, install
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler, random

INPUTS, OUTPUTS = 1024, 208  # a page of inputs; the last panel and the last task are not full


@pytest.fixture(autouse=True)
def default_ways_afterwards() -> Iterator[None]:
    yield
    install(kernels(), {})


def grouped(weight: torch.Tensor) -> tuple[torch.Tensor, int]:
    codes = (weight * 40 + 128).clamp(0, 255).to(torch.uint8)
    scales, zeros = random(len(weight), INPUTS // 64, seed=3), torch.zeros(len(weight), INPUTS // 64, dtype=torch.short)
    matrix = QuantizedMatrix(codes, scales, zeros, 64, bits=8)
    return grouped_weights.pack(matrix), grouped_weights.format_of(matrix)


def rounded(kind: str, weight: torch.Tensor) -> tuple[torch.Tensor, int]:
    return gguf_weights.pack([(kind, weight)], quantization.rounded), gguf_weights.FORMAT


def plain(packed: torch.Tensor, *, rounds: bool = False) -> tuple[torch.Tensor, int]:
    return packed, format_of(packed, rounds_inputs=rounds)


PACKED: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, int]]] = {
    "float32": lambda weight: plain(pack(weight)),
    "bfloat16": lambda weight: plain(pack_short(weight.bfloat16())),
    "rounded": lambda weight: plain(pack_short(weight.bfloat16()), rounds=True),
    "tiled": lambda weight: (pack_short(weight.bfloat16()), TILED),
    "int8": lambda weight: rounded(quantization.INT8, weight),
    "int4": lambda weight: rounded(quantization.INT4, weight),
    "checkpoint's 8 bits": grouped,
}


@needs_compiler
@pytest.mark.parametrize("form", list(PACKED))
@pytest.mark.parametrize("rows", [1, 3, 40, 300])
def test_all_ways_give_the_same_bits(form: str, rows: int) -> None:
    packed, number = PACKED[form](random(OUTPUTS, INPUTS))
    x, bias, product = random(rows, INPUTS, seed=1), random(OUTPUTS, seed=2), Product(number, INPUTS, OUTPUTS)
    measured_rows = next(measured for measured, most in MAX_ROWS.items() if rows <= most)

    def result() -> torch.Tensor:
        out = torch.full((rows, OUTPUTS), 77.0)
        addresses = (x.data_ptr(), packed.data_ptr(), number, bias.data_ptr(), out.data_ptr())
        kernels().mm_linear(*addresses, *x.shape, OUTPUTS, 0)
        return out

    expected = result()
    ways = [*candidates(number, measured_rows), Way(64, 4096, 1)]
    for way in ways:
        install(kernels(), {(product, measured_rows): way})
        assert torch.equal(result(), expected), way


@pytest.mark.parametrize("rows", MAX_ROWS)
@pytest.mark.parametrize("form", range(9))
def test_the_default_is_the_first_candidate_and_there_are_others(form: int, rows: int) -> None:
    found = candidates(form, rows)
    assert found[0] == default(form, rows)
    assert len(found) == len(set(found)) > 1
    assert all(way.task_outputs % 32 == 0 for way in found)


class Told:
    """In place of the kernels: keeps the choices that it is told."""

    def mm_choose_ways(self, address: int, count: int) -> None:
        numbers = list((ctypes.c_int64 * (8 * count)).from_address(address))
        self.choices = [tuple(numbers[i : i + 8]) for i in range(0, len(numbers), 8)]


def test_a_choice_is_not_used_for_fewer_rows() -> None:
    """Products of one row wait for memory, and are slower in what is the fastest way of four."""
    told, product, way = Told(), Product(4, 576, 960), Way(16384, 64, 768 << 10)
    install(told, {(product, 4): way, (product, 128): way})  # type: ignore[arg-type]
    assert told.choices == [(*product, 2, 4, *way), (*product, 49, 1 << 40, *way)]
