"""The battery compares the kernels of weights in few bits: here in Triton's interpreter, and a wrong one is noticed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks.gpu.kernels import coded
from benchmarks.gpu.kernels.case import Bench, compare
from mmserve.config.resolved.gpu_capability import ADA, Capability
from mmserve.model_backend.platforms.cuda import coded_linear, fp8_linear
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu
from mmserve.model_backend.platforms.cuda.coded_linear import CodedWeights
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter


@pytest.fixture
def bench() -> Bench:
    platform = CudaPlatform(torch.device("cpu"), torch.float32)
    return Bench(platform, torch.Generator().manual_seed(3), small=True)


def test_products_with_codes_are_those_of_float64(bench: Bench) -> None:
    cases = list(coded.product_with_codes(bench))
    assert len(cases) == 8
    for case in cases:
        compare(bench, case)


def test_products_in_fp8_are_those_of_the_rounded_numbers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch: the interpreter rounds to FP8 wrongly."""
    monkeypatch.setattr(fp8_linear, "quantized_in_one_launch", fp8_linear.quantized)
    monkeypatch.setattr(fp8_linear, "scaled_product", fp8_linear.exact_product)
    cases = list(coded.product_in_fp8(bench))
    assert len(cases) == 2
    for case in cases:
        compare(bench, case)
    monkeypatch.setattr(fp8_linear, "scaled_product", lambda x, weight, dtype: x[0].to(dtype) @ weight[0].to(dtype).T)
    with pytest.raises(AssertionError, match="relative error"):
        compare(bench, cases[0])


@pytest.mark.parametrize("capability", [(9, 0), (8, 6)])
def test_a_layer_of_an_fp8_checkpoint_is_compared_and_one_that_widens_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capability: Capability
) -> None:
    """torch rounds and multiplies, as above; its product has a form on a CPU."""
    monkeypatch.setattr(Gpu, "of", lambda device: Gpu(device, capability, 1, 0))
    monkeypatch.setattr(fp8_linear, "Fp8Linear", partial(fp8_linear.Fp8Linear, quantize=fp8_linear.quantized))
    monkeypatch.setattr(fp8_linear, "works_for_checkpoints", lambda device, dtype: True)
    monkeypatch.setattr(coded_linear, "check_coded", lambda device, dtype, float8: None)
    bench = replace(bench, platform=CudaPlatform(torch.device("cpu"), torch.bfloat16))
    cases = list(coded.product_with_float8(bench))
    assert len(cases) == 4
    for case in cases:
        if capability >= ADA:
            compare(bench, case)
            continue
        with pytest.raises(AssertionError, match="relative error"):
            compare(bench, case)


def test_a_wrong_product_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CodedWeights.product
    monkeypatch.setattr(CodedWeights, "product", lambda self, x: right(self._replace(zeros=self.zeros + 0.01), x))
    with pytest.raises(AssertionError, match="relative error"):
        compare(bench, next(coded.product_with_codes(bench)))
