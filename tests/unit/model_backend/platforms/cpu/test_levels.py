"""The kernels compute the same numbers on every instruction set, for a row alone and in any batch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmserve.model_backend.platforms.cpu.library import build, levels, tile_permission
from mmserve.model_backend.platforms.cpu.library.levels import Level
from mmserve.model_backend.platforms.cpu.linear.packed_weights import TILED, format_of, pack, pack_short
from mmserve.model_backend.platforms.cpu.ops import ACTIVATIONS, KernelOps
from mmserve.model_backend.platforms.cpu.threads import set_threads
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler, random

FORMS = ("float32", "bfloat16", "rounded", "tiled")


@cache
def built() -> dict[str, ctypes.CDLL]:
    """The kernels of every level that this CPU has, with three threads."""
    found = {level.name: build.build_and_load(level) for level in levels.of_this_cpu()}
    for kernels in found.values():
        set_threads(kernels, 3)
    return found


def packed_as(form: str, weight: torch.Tensor) -> torch.Tensor:
    match form:
        case "float32":
            return pack(weight)
        case _:
            return pack_short(weight.bfloat16())


def product(kernels: ctypes.CDLL, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, form: str) -> torch.Tensor:
    out = torch.full((len(x), len(bias)), 77.0)
    number = TILED if form == "tiled" else format_of(packed, rounds_inputs=form == "rounded")
    addresses = (x.data_ptr(), packed.data_ptr(), number, bias.data_ptr(), out.data_ptr())
    kernels.mm_linear(*addresses, *x.shape, len(bias), 0)
    return out


@needs_compiler
@pytest.mark.parametrize("form", FORMS)
@given(
    rows=st.integers(1, 40),
    outputs=st.integers(1, 100),
    inputs=st.integers(1, 90),
    cuts=st.sets(st.integers(1, 39), max_size=4),
    seed=st.integers(0, 99),
)
def test_a_row_has_the_same_bits_in_any_batch_on_every_level(
    form: str, rows: int, outputs: int, inputs: int, cuts: set[int], seed: int
) -> None:
    weight, x, bias = random(outputs, inputs, seed=seed), random(rows, inputs, seed=seed + 1), random(outputs, seed=2)
    packed = packed_as(form, weight)
    whole = [product(kernels, x, packed, bias, form) for kernels in built().values()]
    assert all(torch.equal(found, whole[0]) for found in whole)
    ends = [0, *sorted(cut for cut in cuts if cut < rows), rows]
    for kernels in built().values():
        parts = [product(kernels, x[start:end].contiguous(), packed, bias, form) for start, end in pairwise(ends)]
        assert torch.equal(torch.cat(parts), whole[0])


@needs_compiler
@pytest.mark.parametrize("form", ["float32", "bfloat16", "rounded", "tiled"])
def test_many_rows_of_a_width_that_fills_pages_have_the_same_bits(form: str) -> None:
    weight, x, bias = random(64, 2048), random(300, 2048, seed=1), random(64, seed=2)
    packed = packed_as(form, weight)
    whole = [product(kernels, x, packed, bias, form) for kernels in built().values()]
    assert all(torch.equal(found, whole[0]) for found in whole)
    for kernels in built().values():
        assert torch.equal(product(kernels, x[7:8].contiguous(), packed, bias, form), whole[0][7:8])


@needs_compiler
@given(rows=st.integers(1, 30), outputs=st.integers(1, 70), inputs=st.integers(1, 90), seed=st.integers(0, 99))
def test_weights_kept_in_bfloat16_give_the_bits_of_float32_weights(
    rows: int, outputs: int, inputs: int, seed: int
) -> None:
    weight, x = random(outputs, inputs, seed=seed).bfloat16().float(), random(rows, inputs, seed=seed + 1)
    short, bias = pack(weight), random(outputs, seed=2)
    weight[0, 0] = 1 + 2**-20  # no bfloat16 number, so that pack keeps float32
    long = pack(weight)
    assert (short.dtype, long.dtype) == (torch.bfloat16, torch.float32)
    for kernels in built().values():
        found, expected = (product(kernels, x, packed, bias, "bfloat16") for packed in (short, long))
        assert torch.equal(found[:, 1:], expected[:, 1:])


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a b + c of float32 numbers with one rounding; a and b have few enough bits that a b is exact in double."""
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    lost = (product - (total - (total - product))) + (addend - (total - product))
    # Rounding to odd in double, and then to nearest in float, rounds as once to nearest.
    even = total.view(torch.int64) % 2 == 0
    away = torch.nextafter(total, torch.where(lost > 0, torch.inf, -torch.inf).double())
    return torch.where((lost != 0) & even, away, total).float()


def flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, torch.zeros(()).copysign(x), x)


def summed(x: torch.Tensor, weight: torch.Tensor, flush: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """[rows, outputs] as VDPBF16PS sums: odd inputs before even ones, each fused."""
    sums = torch.zeros(len(x), len(weight))
    for k in range(0, x.shape[1], 2):
        for i in (k + 1, k):
            sums = flush(fused(flush(x[:, None, i]), flush(weight[None, :, i]), sums))
    return sums


def summed_in_tiles(
    x: torch.Tensor, weight: torch.Tensor, flush: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """[rows, outputs] as TDPBF16PS sums: 32 inputs at a time, even and odd ones apart."""
    sums = torch.zeros(len(x), len(weight))
    for start in range(0, x.shape[1], 32):
        parts = [torch.zeros_like(sums), torch.zeros_like(sums)]
        for k in range(start, min(start + 32, x.shape[1])):
            parts[k % 2] = flush(fused(flush(x[:, None, k]), flush(weight[None, :, k]), parts[k % 2]))
        sums = flush(sums + flush(parts[0] + parts[1]))
    return sums


@needs_compiler
@pytest.mark.parametrize(("form", "sums"), [("rounded", summed), ("tiled", summed_in_tiles)])
@pytest.mark.parametrize(
    ("x_exponents", "weight_exponents", "with_denormals"),
    [((-20, 20), (-20, 20), False), ((-76, -66), (-76, -66), True), ((-140, -128), (0, 20), True)],
    ids=["normal numbers", "denormal products", "denormal inputs"],
)
def test_bfloat16_products_are_summed_as_the_instruction_does(
    x_exponents: tuple[int, int],
    weight_exponents: tuple[int, int],
    with_denormals: bool,
    form: str,
    sums: Callable[..., torch.Tensor],
) -> None:
    """Denormal numbers are zeros. With the instruction, or by other means on levels without it."""
    generator = torch.Generator().manual_seed(0)

    def numbers(rows: int, exponents: tuple[int, int]) -> torch.Tensor:
        mantissas = torch.randint(-255, 256, (rows, 74), generator=generator).float()
        return torch.ldexp(mantissas, torch.randint(*exponents, (rows, 74), generator=generator)).bfloat16().float()

    x, weight = numbers(40, x_exponents), numbers(64, weight_exponents)
    expected = sums(x, weight, flushed)
    assert torch.equal(expected, sums(x, weight, lambda numbers: numbers)) is not with_denormals
    for name, kernels in built().items():
        found = product(kernels, x, pack_short(weight.bfloat16()), torch.zeros(64), form)
        assert torch.equal(found, expected), name


@needs_compiler
@pytest.mark.parametrize("form", ["rounded", "tiled"])
def test_inputs_are_rounded_to_the_nearest_bfloat16(form: str) -> None:
    """A denormal input is a zero before it is rounded: the largest one, behind 1e-39, would become a normal number."""
    x = torch.tensor([1.0, 1 + 2**-8, 1 + 2**-7, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.0e38, 3.4e38, 1e-39, -0.0])
    largest = torch.tensor([0x7FFFFF]).view(torch.float32)
    x = torch.cat([x, largest, random(800) * torch.logspace(-30, 30, 800)])[:, None].contiguous()
    for kernels in built().values():
        found = product(kernels, x, pack_short(torch.ones(1, 1).bfloat16()), torch.zeros(1), form)
        assert torch.equal(found, flushed(x).bfloat16().float())


@needs_compiler
def test_all_other_operations_have_the_same_bits_on_every_level() -> None:
    results = []
    for kernels in built().values():
        ops, rounding = KernelOps(kernels), KernelOps(kernels, rounds=True)
        heads, angles = random(20, 3, 32), random(20, 16, seed=1)
        ops.head_norm_(heads, random(32, seed=1), 1e-5)
        ops.rotary_(heads, angles.cos(), angles.sin())
        sums = random(300, 72)
        ops.add_scaled_(sums, random(300, 72, seed=1), random(72, seed=2))
        results.append(
            [
                sums,
                heads,
                ops.rms_norm(random(9, 64), random(64, seed=1), 1e-5),
                ops.layer_norm(random(9, 64), random(64, seed=1), random(64, seed=2), 1e-5),
                ops.encoder_attention(random(370, 144), 2, (300, 17, 53)),
                rounding.encoder_attention(random(370, 144), 2, (300, 17, 53)),
                *(each.activation(name)(5 * random(5, 40)) for name in ACTIVATIONS for each in (ops, rounding)),
                *(each.act_and_mul(name)(5 * random(5, 40)) for name in ACTIVATIONS for each in (ops, rounding)),
            ]
        )
    assert all(torch.equal(*pair) for found in results for pair in zip(found, results[0], strict=True))


def test_the_fastest_level_comes_first_and_every_cpu_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(flags: str, machine: str = "x86_64") -> list[Level]:
        monkeypatch.setattr(levels, "_flags", lambda: flags)
        monkeypatch.setattr("platform.machine", lambda: machine)
        return levels.of_this_cpu()

    x86_64, (neon_bf16, neon) = levels.LEVELS["x86_64"], levels.LEVELS["aarch64"]
    every = " ".join(x86_64[0].needs)
    monkeypatch.setattr(tile_permission, "permitted", lambda: True)
    assert found(every) == list(x86_64)
    assert [level.name for level in found(every.replace("amx_bf16", ""))] == ["avx512_bf16", "avx512", "avx2"]
    assert [level.name for level in found(every.replace("avx512_bf16", ""))] == ["avx512", "avx2"]
    assert [level.name for level in found(every.replace("avx512vl", ""))] == ["avx2"]
    assert found("sse2") == found("") == found(every, "aarch64") == found(every, "riscv64") == [levels.NATIVE]
    assert found("fp asimd bf16", "aarch64") == [neon]
    assert found(" ".join(neon_bf16.needs), "aarch64") == [neon_bf16, neon]
    assert levels.key(x86_64[2]) != levels.key(x86_64[1])
    found(every)
    assert levels.of_this_cpu("avx512") == list(x86_64[2:])
    monkeypatch.setattr(tile_permission, "permitted", lambda: False)
    assert found(every) == list(x86_64[1:])
    assert levels.refuses_tiles()
    with pytest.raises(ValueError, match=r"^avx512_bf16, avx512, avx2$"):
        levels.of_this_cpu("amx")
