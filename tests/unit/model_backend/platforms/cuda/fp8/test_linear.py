"""Products in FP8 with a scale for each row: the arithmetic on a CPU against float64.

How ``torch._scaled_mm`` computes on a GPU the battery compares; here it is torch's on a CPU.
"""

from __future__ import annotations

import pytest
import torch

from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.target import LinearShard
from mmserve.model_backend.platforms.cuda.fp8 import products, trials
from mmserve.model_backend.platforms.cuda.fp8.forms import BY_ROWS
from mmserve.model_backend.platforms.cuda.fp8.linear import Fp8Linear, PlainSource, sizes_fit
from mmserve.model_backend.platforms.cuda.fp8.rows import Rows, quantized
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from mmserve.model_backend.platforms.reference import PlainLinear
from mmserve.runtime.errors import StartupError
from tests.unit.model_backend.platforms.cuda.fp8.loading import random
from tests.unit.model_backend.platforms.cuda.fp8.rounding import round_by_torch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def rounded_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    round_by_torch(monkeypatch)


def linear(weight: torch.Tensor, dtype: torch.dtype = torch.float32) -> Fp8Linear:
    """With these weights, in the way of a checkpoint."""
    made = Fp8Linear(PlainSource(LinearShape.full(*weight.shape), dtype), BY_ROWS, dtype, CPU)
    ((name, target),) = made.targets(LinearShard("m", (weight.shape[0], weight.shape[1]), slice(None), 0, 0))
    assert name == "m.weight"
    target.into.copy_(weight)
    made.finish_loading()
    return made


def test_a_product_is_that_of_the_rounded_numbers() -> None:
    x, weight = random(5, 64), random(32, 64) * torch.logspace(-3, 3, 32)[:, None]
    found = linear(weight).apply(x)
    rounded = [numbers.double() * scales.double() for numbers, scales in (quantized(x), quantized(weight))]
    torch.testing.assert_close(found.double(), rounded[0] @ rounded[1].T, rtol=1e-4, atol=1e-5)
    sizes = weight.norm(dim=1)  # each output has a scale of its own, so small ones are as exact
    exact = x.double() @ weight.double().T
    assert ((found - exact) / sizes).norm() < 0.06 * (exact / sizes).norm()


def test_bias_and_residual_are_added() -> None:
    x, weight, bias, residual = random(3, 48), random(16, 48), random(16), random(3, 16)
    made = linear(weight)
    expected = residual + made.apply(x) + bias
    assert made.apply(x, bias, residual) is residual
    torch.testing.assert_close(residual, expected)


def test_a_row_is_rounded_alike_alone_and_beside_larger_ones() -> None:
    made, x = linear(random(16, 32)), random(4, 32)
    alone = made.apply(x[:1])
    x[1:] *= 1000
    torch.testing.assert_close(made.apply(x)[:1], alone)


def test_rows_of_zeros_and_no_rows() -> None:
    made = linear(random(16, 32))
    assert not made.apply(torch.zeros(2, 32)).any()
    assert made.apply(torch.empty(0, 32)).shape == (0, 16)


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        (LinearShape.full(48, 64), True),
        (LinearShape.full(40, 64), False),
        (LinearShape.full(48, 72), False),
        (LinearShape.full(48, 1 << 16), False),
    ],
)
def test_which_sizes_fit(shape: LinearShape, fits: bool) -> None:
    assert sizes_fit(shape) is fits


def test_a_gpu_that_cannot_or_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = products.by_rows

    def fails(*_: object) -> torch.Tensor:
        raise RuntimeError("needs compute capability 8.9")

    def wrong(x: Rows, weight: Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        return x.numbers.float()[:, : len(weight.numbers)]

    def without_bias(x: Rows, weight: Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        return right(x, weight, None, dtype)

    wrongs = (wrong, "computes wrong products"), (without_bias, "computes wrong products")
    for product, reason in ((fails, "needs compute capability 8.9"), *wrongs):
        trials.problem_with_fp8.cache_clear()
        monkeypatch.setattr(products, "by_rows", product)
        with pytest.raises(StartupError, match=f"--quantization fp8.*{reason}"):
            trials.check_fp8(CPU, torch.bfloat16)
    trials.problem_with_fp8.cache_clear()
    monkeypatch.setattr(products, "by_rows", right)
    trials.check_fp8(CPU, torch.bfloat16)


def test_a_gpu_that_has_no_products_of_the_models_dtype_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``torch._scaled_mm`` on most GPUs, with a scale for each row."""
    right = products.by_rows

    def product(x: Rows, weight: Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.float32:
            raise ValueError("Only bf16 and fp16 high precision output types are supported")
        return right(x, weight, bias, dtype)

    monkeypatch.setattr(products, "by_rows", product)
    shape = LinearShape.full(48, 64)
    assert isinstance(CudaPlatform(CPU, torch.bfloat16).linear_method("fp8", shape), Fp8Linear)
    with pytest.raises(StartupError, match=r"--quantization fp8.*Only bf16 and fp16"):
        CudaPlatform(CPU, torch.float32).linear_method("fp8", shape)


def test_a_gpu_converts_the_layers_alone_and_refuses_formats_of_a_cpu() -> None:
    platform, shape = CudaPlatform(CPU, torch.bfloat16), LinearShape.full(48, 64)
    assert isinstance(platform.linear_method("fp8", shape), Fp8Linear)
    assert isinstance(platform.linear_method("fp8", LinearShape.full(40, 64)), PlainLinear)
    assert isinstance(platform.linear_method("fp8", LinearShape.full(48, 64, quantizable=False)), PlainLinear)
    assert isinstance(platform.embedding_method("fp8", shape), PlainLinear)
    with pytest.raises(StartupError, match="--quantization int4 is for a CPU: choose fp8 on a GPU"):
        platform.linear_method("int4", shape)
