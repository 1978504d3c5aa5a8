"""The battery compares the kernels of weights in few bits: here in Triton's interpreter, and a wrong one is noticed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu.kernels import coded, rounded
from benchmarks.gpu.kernels.attention import Attended, Chunk
from benchmarks.gpu.kernels.case import Bench, Case, Cases, compare
from mmserve.config.resolved.gpu_capability import Capability
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.platforms.cuda import coded_linear
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling, Tiling
from mmserve.model_backend.platforms.cuda.attention.unmerged import Unmerged
from mmserve.model_backend.platforms.cuda.coded_linear import CodedWeights
from mmserve.model_backend.platforms.cuda.fp8 import launches, products, rows
from mmserve.model_backend.platforms.cuda.fp8.rows import Rows
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from tests.fakes.devices.scaled_products import scaled_mm
from tests.unit.model_backend.platforms.cuda.fp8.rounding import round_by_torch
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
    round_by_torch(monkeypatch)
    cases = list(coded.product_in_fp8(bench))
    assert len(cases) == 2
    for case in cases:
        compare(bench, case)
    monkeypatch.setattr(products, "by_rows", _unscaled)
    with pytest.raises(AssertionError, match="relative error"):
        compare(bench, cases[0])


def _unscaled(x: rows.Rows, weight: rows.Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    return x.numbers.to(dtype) @ weight.numbers.to(dtype).T


@pytest.mark.parametrize(
    ("cases_of", "count", "capability", "in_fp8"),
    [
        (coded.product_with_float8, 4, (9, 0), True),
        (coded.product_with_float8, 4, (8, 6), False),
        (coded.product_with_blocks, 6, (9, 0), True),
        (coded.product_with_blocks, 6, (10, 0), False),
    ],
)
def test_a_layer_of_an_fp8_checkpoint_is_compared_and_one_that_widens_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cases_of: Cases, count: int, capability: Capability, in_fp8: bool
) -> None:
    """torch rounds and multiplies, as above; with blocks a stand-in for it."""
    monkeypatch.setattr(Gpu, "of", lambda device: Gpu(device, capability, 1, 0))
    monkeypatch.setattr(F, "scaled_mm", scaled_mm)
    round_by_torch(monkeypatch)
    monkeypatch.setattr(coded_linear, "check_coded", lambda device, dtype, float8: None)
    bench = replace(bench, platform=CudaPlatform(torch.device("cpu"), torch.bfloat16))
    cases = list(cases_of(bench))
    assert len(cases) == count
    for case in cases:
        if in_fp8:
            compare(bench, case)
            continue
        with pytest.raises(AssertionError, match="relative error"):
            compare(bench, case)


def test_a_wrong_product_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CodedWeights.product
    monkeypatch.setattr(CodedWeights, "product", lambda self, x: right(self._replace(zeros=self.zeros + 0.01), x))
    with pytest.raises(AssertionError, match="relative error"):
        compare(bench, next(coded.product_with_codes(bench)))


def test_attention_in_fp8_is_compared(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As norms and gates below."""

    def attention(self: CudaPlatform, spec: AttentionSpec, kv_dtype: torch.dtype) -> TritonAttention:
        return TritonAttention(spec, self.device, tiling, num_programs=2)

    tiling = AttentionTiling(Tiling(16, 16, 4, 1), Tiling(32, 32, 4, 1), split_tokens=32, segment_tokens=32)
    spec, chunks = AttentionSpec(4, 2, 64), (Chunk(40), Chunk(3))
    numbers = [bench.random(chunk.start + chunk.count, 8, 64) for chunk in chunks]
    case = Case("short", partial(rounded._attended, Attended(spec, chunks, numbers), 128))

    monkeypatch.setattr(rows, "FP8", torch.float32)
    monkeypatch.setattr(CudaPlatform, "attention", attention)
    compare(bench, case)

    def wrong(unmerged: Unmerged, group: int | None) -> Rows:
        return rows.quantized(1.05 * unmerged.merged().flatten(1), group)

    monkeypatch.setattr(launches, "attended", wrong)
    with pytest.raises(AssertionError, match="relative error"):
        compare(bench, case)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.parametrize("cases_of", [rounded.normed, rounded.gated])
def test_norms_and_gates_in_fp8_are_compared(bench: Bench, monkeypatch: pytest.MonkeyPatch, cases_of: Cases) -> None:
    """With scales of FP8, but numbers that are not rounded, which the interpreter does wrongly."""
    monkeypatch.setattr(rows, "FP8", torch.float32)
    cases = list(cases_of(bench))
    assert len(cases) == (12 if cases_of is rounded.normed else 8)
    for case in cases:
        compare(bench, case)
    right = launches.gated, launches.normed
    monkeypatch.setattr(launches, "gated", lambda x, *how: right[0](1.001 * x, *how))
    monkeypatch.setattr(launches, "normed", lambda x, weight, *how: right[1](x, 1.001 * weight, *how))
    with pytest.raises(AssertionError, match="relative error"):
        compare(bench, cases[0])
