"""Every linear method of a CPU computes x W^T + bias, adds it to a residual, and looks rows up."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.target import LinearShard
from mmserve.model_backend.platforms.cpu.linear import gguf_weights, packing, quantization
from mmserve.model_backend.platforms.cpu.linear.packing import (
    Int4Linear,
    Int8Linear,
    KernelLinear,
    OneDnnLinear,
    RoundedInputs,
    RoundedKernelLinear,
)
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.cpu.threads import share_cores
from mmserve.model_backend.platforms.reference import PlainLinear
from mmserve.runtime.errors import StartupError
from tests.fakes.formats.quantized import dequantized
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler, random

MakeMethod = Callable[[ctypes.CDLL, LinearShape], KernelLinear]
FORMATS: list[MakeMethod] = [KernelLinear, RoundedKernelLinear, Int8Linear, Int4Linear]


def loaded(make: MakeMethod, weight: torch.Tensor) -> KernelLinear:
    method = make(kernels(), LinearShape.full(*weight.shape))
    method.weight.copy_(weight)
    method.finish_loading()
    return method


@needs_compiler
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13, 100, 700])
def test_kernel_linear_computes_the_product_and_adds_it_to_the_residual(rows: int, short: bool) -> None:
    weight, x, bias, residual = (
        random(208, 90),
        random(rows, 90, seed=1),
        random(208, seed=2),
        random(rows, 208, seed=3),
    )
    if short:
        weight = weight.bfloat16().float()
    method = loaded(KernelLinear, weight)
    assert method.packed.dtype is (torch.bfloat16 if short else torch.float32)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(method.apply(x, bias), expected, rtol=1e-4, atol=1e-4)
    added = residual.clone()
    assert method.apply(x, bias, added) is added
    torch.testing.assert_close(added, residual + expected, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 40])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_linear_computes_with_the_rounded_weights(rows: int, bits: int) -> None:
    weight, x, bias, residual = (
        random(112, 96),
        random(rows, 96, seed=1),
        random(112, seed=2),
        random(rows, 112, seed=3),
    )
    weight[7] = 0
    x[:, :32] *= 1000
    method = loaded(Int8Linear if bits == 8 else Int4Linear, weight)
    rounded = dequantized(weight, f"int{bits}")
    step = weight.abs().max() * 2 / (2**bits - 1)
    assert (rounded - weight).abs().max() <= step * 0.55
    expected = residual + F.linear(x, rounded, bias)
    assert (method.apply(x, bias, residual) - expected).abs().max() <= 1e-4 * expected.abs().max()


@needs_compiler
@pytest.mark.parametrize("make", [Int8Linear, Int4Linear])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_quantized_linear_keeps_activations_that_are_not_finite(make: MakeMethod, wrong: float) -> None:
    x = random(2, 64)
    x[1, 40] = wrong
    found = loaded(make, random(16, 64, seed=1)).apply(x)
    assert found[0].isfinite().all()
    assert not found[1].isfinite().any()


@needs_compiler
@pytest.mark.parametrize("rows", [2, 3, 6, 7, 300])
@pytest.mark.parametrize("make", FORMATS)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(rows: int, make: MakeMethod) -> None:
    method, x = loaded(make, random(112, 96).bfloat16().float()), random(rows, 96, seed=1)
    together = method.apply(x)
    assert all(torch.equal(method.apply(x[i : i + 1])[0], together[i]) for i in (0, rows // 2, rows - 1))


@needs_compiler
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "int4"])
def test_rows_are_looked_up_in_packed_weights(form: str) -> None:
    weight, indices = random(64, 96), torch.tensor([63, 0, 17, 17, 5] * 90)
    if form == "bfloat16":
        weight = weight.bfloat16().float()
    method = loaded({"int8": Int8Linear, "int4": Int4Linear}.get(form, KernelLinear), weight)
    expected = dequantized(weight, form) if form.startswith("int") else weight
    assert torch.equal(method.rows(indices), expected[indices])
    assert method.rows(indices[:0]).shape == (0, 96)


@pytest.mark.parametrize("kind", [quantization.INT8, quantization.INT4])
def test_quantizing_in_parts_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(80, 64)
    whole = gguf_weights.pack([(kind, weight)], quantization.rounded)
    monkeypatch.setattr(gguf_weights, "_AT_ONCE", 32 * 64)
    assert torch.equal(gguf_weights.pack([(kind, weight)], quantization.rounded), whole)


@needs_compiler
def test_leaving_cores_to_other_processes_changes_no_result() -> None:
    """The number of threads changes while products are computed."""
    method, x = loaded(KernelLinear, random(208, 90)), random(100, 90, seed=1)
    busy_cores = (ctypes.c_int32 * 2)()
    expected = method.apply(x)
    share_cores(kernels(), busy_cores)
    try:
        for counts in ((0, 0), (1, 0), (0, 2), (1, 1), (3, 0), (2, 9), (0, 1), (0, 0)):
            busy_cores[:] = counts
            assert all(torch.equal(method.apply(x), expected) for _ in range(50))
    finally:
        share_cores(kernels(), (ctypes.c_int32 * 0)())


def plain(dtype: torch.dtype) -> PlainLinear:
    return PlainLinear(LinearShape.full(12, 24), dtype, torch.device("cpu"))


def onednn(dtype: torch.dtype) -> PlainLinear:
    if not packing.onednn_works(dtype):
        pytest.skip(f"this torch has no oneDNN product in {dtype}")
    return OneDnnLinear(LinearShape.full(12, 24), dtype, torch.device("cpu"))


@pytest.mark.parametrize("make", [plain, onednn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 33])
def test_linear_without_kernels_computes_the_product_and_adds_it_to_the_residual(
    make: Callable[[torch.dtype], PlainLinear], dtype: torch.dtype, rows: int
) -> None:
    """What a GPU, bfloat16 and a machine without a compiler compute with."""
    weight, bias, x = (random(*shape).to(dtype) for shape in ((12, 24), (12,), (rows, 48)))
    x, residual = x[:, :24], random(rows, 12, seed=3).to(dtype)
    method, expected = make(dtype), F.linear(x, weight, bias)
    method.weight.copy_(weight)
    tolerance = {"rtol": 2e-2 if dtype != torch.float32 else 1e-5, "atol": 1e-2}
    with torch.inference_mode():
        method.finish_loading()
        torch.testing.assert_close(method.apply(x, bias), expected, **tolerance)
        added = residual.clone()
        assert method.apply(x, bias, added) is added
        torch.testing.assert_close(added, residual + expected, **tolerance)


@needs_compiler
@pytest.mark.parametrize("make", [KernelLinear, RoundedKernelLinear])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (20, 23), (33, 24), (95, 7)])
def test_any_number_of_outputs_and_inputs_can_be_multiplied_and_looked_up(
    make: MakeMethod, outputs: int, inputs: int
) -> None:
    weight, bias = random(outputs, inputs).bfloat16().float(), random(outputs)
    x, residual = random(9, inputs, seed=2).bfloat16().float(), random(9, outputs, seed=3)
    method, around = loaded(make, weight), torch.full((11, outputs), 77.0)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(method.apply(x, bias), expected)
    around[1:10] = residual
    torch.testing.assert_close(method.apply(x, bias, around[1:10]), residual + expected)
    assert (around[::10] == 77).all()
    assert torch.equal(method.rows(torch.arange(outputs)), weight)


@needs_compiler
def test_a_product_in_bfloat16_rounds_weights_and_inputs_alone() -> None:
    weight, bias, x = random(48, 96), random(48, seed=1), random(30, 96, seed=2)
    method = loaded(RoundedKernelLinear, weight)
    expected = F.linear(x.bfloat16().double(), weight.bfloat16().double(), bias.double())
    torch.testing.assert_close(method.apply(x, bias).double(), expected, rtol=1e-5, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_product_in_bfloat16_keeps_numbers_that_are_not_finite(wrong: float) -> None:
    x = random(2, 64)
    x[1, 40] = wrong
    found = loaded(RoundedKernelLinear, random(16, 64, seed=1)).apply(x)
    assert found[0].isfinite().all()
    assert not found[1].isfinite().any()


def test_padded_outputs_have_zero_weights() -> None:
    method = PlainLinear(LinearShape(8, 4, used=5), torch.float32, torch.device("cpu"))
    method.weight[:5] = 1
    assert method.apply(torch.ones(1, 4)).tolist() == [[4] * 5 + [0] * 3]


def test_a_dtype_that_fails_onednns_self_test_keeps_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    platform, shape = CpuPlatform(torch.float16), LinearShape.full(12, 24)
    monkeypatch.setattr("mmserve.model_backend.platforms.cpu.platform.onednn_works", lambda dtype: False)
    assert type(platform.linear_method("none", shape)) is PlainLinear


@needs_compiler
def test_each_quantization_and_shape_gets_its_method() -> None:
    platform, divisible, odd = CpuPlatform(torch.float32), LinearShape.full(16, 32), LinearShape.full(12, 24)
    assert type(platform.linear_method("none", divisible)) is KernelLinear
    assert type(platform.linear_method("int8", divisible)) is Int8Linear
    assert type(platform.linear_method("int4", divisible)) is Int4Linear
    assert type(platform.embedding_method("int4", divisible)) is Int8Linear, "it is often the head too"
    assert type(platform.linear_method("none", odd)) is KernelLinear
    assert type(platform.embedding_method("none", odd)) is KernelLinear
    with pytest.raises(StartupError, match="not 12 and 24"):
        platform.linear_method("int8", odd)


@needs_compiler
def test_in_bfloat16_a_matrix_whose_results_decide_much_stays_exact() -> None:
    platform, shape = CpuPlatform(torch.bfloat16), LinearShape.full(16, 32)
    assert type(platform.linear_method("none", shape)) is RoundedKernelLinear
    assert type(platform.embedding_method("none", shape)) is RoundedKernelLinear
    assert type(platform.linear_method("none", shape._replace(quantizable=False))) is KernelLinear


@needs_compiler
def test_without_kernels_bfloat16_computes_the_same_but_for_rounded_results(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels = CpuPlatform(torch.bfloat16)
    monkeypatch.setattr("mmserve.model_backend.platforms.cpu.platform.verified_kernels", lambda fastest: None)
    without, shape = CpuPlatform(torch.bfloat16), LinearShape.full(48, 64)
    weight, bias, x, residual = random(48, 64), random(48, seed=1), random(9, 64, seed=2), random(9, 48, seed=3)
    for make in ("linear_method", "embedding_method"):
        results = []
        for platform in (with_kernels, without):
            method = getattr(platform, make)("none", shape)
            ((_, target),) = method.targets(LinearShard("layer", (48, 64), slice(0, 48), dim=0, start=0))
            target.into.copy_(weight)
            with torch.inference_mode():
                method.finish_loading()
                results.append(method.apply(x, bias, residual.clone()))
        assert isinstance(method, RoundedInputs)
        torch.testing.assert_close(*results, rtol=1e-2, atol=5e-2)
    assert torch.equal(method.rows(torch.tensor([3, 0])), weight[[3, 0]].bfloat16().float())


def test_quantization_without_kernels_is_refused() -> None:
    with pytest.raises(StartupError, match="compiler"):
        CpuPlatform(torch.float16).linear_method("int4", LinearShape.full(16, 32))
