"""Layers of FP8 checkpoints on a GPU: which way a layer takes, and that of FP8 units against float64.

The product is torch's on a CPU; on a GPU the battery compares it.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mmserve.config.resolved.gpu_capability import ADA, HOPPER, Capability
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.target import LinearShard
from mmserve.model_backend.platforms.cuda import coded_linear
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu
from mmserve.model_backend.platforms.cuda.coded_linear import CodedLinear
from mmserve.model_backend.platforms.cuda.fp8 import launches, products
from mmserve.model_backend.platforms.cuda.fp8.forms import BY_ROWS
from mmserve.model_backend.platforms.cuda.fp8.linear import Fp8Linear, StoredSource
from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, Rows, quantized
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from tests.fakes.devices.scaled_products import scaled_mm
from tests.fakes.formats.quantized_checkpoints import Format, awq, float8, fp8
from tests.unit.model_backend.platforms.cuda.fp8.loading import loaded, random, scheme_of
from tests.unit.model_backend.platforms.cuda.fp8.rounding import gated, round_by_torch

CPU = torch.device("cpu")
OUTPUTS, INPUTS = 48, 64
FORMS = {"tensor": float8("tensor"), "channel": float8("channel"), "fp8": fp8(), "static inputs": fp8(static=True)}


WHOLE = {
    "q": LinearShard("q", (32, INPUTS), slice(0, 32), 0, 0),
    "k": LinearShard("k", (16, INPUTS), slice(32, 48), 0, 0),
}
BY_OUTPUTS = {
    "q": LinearShard("q", (64, INPUTS), slice(0, 32), 0, 32),
    "k": LinearShard("k", (32, INPUTS), slice(32, 48), 0, 16),
}
BY_INPUTS = {"o": LinearShard("o", (OUTPUTS, 2 * INPUTS), slice(0, OUTPUTS), 1, INPUTS)}


@pytest.mark.parametrize("shards", [WHOLE, BY_OUTPUTS, BY_INPUTS], ids=["whole", "by outputs", "by inputs"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_products_are_those_of_the_stored_numbers_and_of_rounded_inputs(
    form: Format, shards: dict[str, LinearShard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused matrices have scales of their own, which differ by a factor of 8."""
    round_by_torch(monkeypatch)
    shape = LinearShape.full(OUTPUTS, INPUTS, tuple(shards))
    layer = Fp8Linear(StoredSource(scheme_of(form), shape), BY_ROWS, torch.bfloat16, CPU)
    weight = loaded(layer, form, shards)
    x, bias, residual = (each.bfloat16() for each in (random(5, INPUTS), random(OUTPUTS), random(5, OUTPUTS)))
    x[1] *= 300
    numbers, scales = quantized(x)
    product = (numbers.double() * scales.double()) @ weight.T
    found = layer.apply(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), product, rtol=2**-7, atol=1e-3)
    expected = residual.double() + bias.double() + product
    assert layer.apply(x, bias, residual) is residual
    assert (residual - expected).norm() <= 2**-7 * expected.norm()


def test_the_product_is_told_one_scale_a_row_and_one_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one scale is for a whole matrix, too: the GPU then computes both kinds in one way."""
    told: list[Rows] = []

    def product(x: Rows, weight: Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        told.extend((x, weight))
        return torch.empty(len(x.numbers), len(weight.numbers), dtype=dtype)

    round_by_torch(monkeypatch)
    monkeypatch.setattr(products, "by_rows", product)
    shape = LinearShape.full(OUTPUTS, INPUTS, ("q", "k"))
    layer = Fp8Linear(StoredSource(scheme_of(fp8()), shape), BY_ROWS, torch.bfloat16, CPU)
    loaded(layer, fp8(), WHOLE)
    layer.apply(random(3, INPUTS).bfloat16())
    for (numbers, scales), count in zip(told, (3, OUTPUTS), strict=True):
        assert (numbers.dtype, numbers.shape) == (torch.float8_e4m3fn, (count, INPUTS))
        assert (scales.dtype, scales.shape) == (torch.float32, (count, 1))
        assert numbers.is_contiguous()
        assert scales.is_contiguous()
    _, of_outputs = told[1]
    assert [len(part.unique()) for part in of_outputs.split([32, 16])] == [1, 1]
    assert of_outputs[0] != of_outputs[-1]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose kernels compute, the inputs' rounding by torch."""
    monkeypatch.setattr(coded_linear, "check_coded", lambda device, dtype, float8: None)
    monkeypatch.setattr(F, "scaled_mm", scaled_mm)
    round_by_torch(monkeypatch)


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    form: Format,
    capability: Capability = ADA,
    dtype: torch.dtype = torch.bfloat16,
    outputs: int = OUTPUTS,
    inputs: int = INPUTS,
) -> type:
    monkeypatch.setattr(Gpu, "of", lambda device: Gpu(device, capability, 1, 0))
    shape = LinearShape.full(outputs, inputs, ("q", "k"))
    return type(CudaPlatform(CPU, dtype).checkpoint_linear_method(scheme_of(form), shape))


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_cards_with_fp8_units_multiply_in_fp8(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, form) is Fp8Linear
    assert chosen(monkeypatch, form, (12, 0)) is Fp8Linear
    assert chosen(monkeypatch, form, (8, 6)) is CodedLinear


@pytest.mark.usefixtures("checked")
def test_blocks_of_128_are_multiplied_in_fp8_on_hopper_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = fp8(block=(GROUP, GROUP))
    assert chosen(monkeypatch, blocks, HOPPER, inputs=2 * GROUP) is Fp8Linear
    assert not caplog.records
    for _ in range(2):
        assert chosen(monkeypatch, blocks, (10, 0), inputs=2 * GROUP) is CodedLinear
    (record,) = caplog.records
    assert "blocks on compute capability 9.0 alone, and this GPU's is 10.0" in record.getMessage()
    assert chosen(monkeypatch, blocks, HOPPER, torch.float32, inputs=2 * GROUP) is CodedLinear
    assert chosen(monkeypatch, blocks, HOPPER, inputs=GROUP + 32) is CodedLinear
    assert chosen(monkeypatch, fp8(block=(32, 32)), HOPPER, inputs=2 * GROUP) is CodedLinear


def weights_alone() -> Format:
    form = float8("channel")
    (group,) = form.config["config_groups"].values()
    return form._replace(config=form.config | {"config_groups": {"g": group | {"input_activations": None}}})


@pytest.mark.usefixtures("checked")
def test_other_formats_and_exact_inputs_take_the_kernel_that_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in (awq(), weights_alone()):
        assert chosen(monkeypatch, form) is CodedLinear
    assert chosen(monkeypatch, fp8(), dtype=torch.float32) is CodedLinear
    assert chosen(monkeypatch, fp8(), outputs=40) is CodedLinear


@pytest.mark.usefixtures("checked")
def test_a_card_that_fails_the_comparison_widens_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unscaled(x: Rows, weight: Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        return x.numbers.to(dtype) @ weight.numbers.to(dtype).T

    monkeypatch.setattr(products, "by_rows", unscaled)
    assert chosen(monkeypatch, fp8()) is CodedLinear
    assert chosen(monkeypatch, float8("channel")) is CodedLinear
    (record,) = caplog.records
    assert "scaled product computes wrong products on this GPU" in record.getMessage()


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("fails", [AttributeError("no scaled_mm"), NotImplementedError("needs cublasLt >= 12.9")])
def test_a_torch_without_products_of_blocks_widens_and_says_so_once(
    fails: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def product(*_: object, **__: object) -> torch.Tensor:
        raise fails

    monkeypatch.setattr(F, "scaled_mm", product)
    for _ in range(2):
        assert chosen(monkeypatch, fp8(block=(GROUP, GROUP)), HOPPER, inputs=2 * GROUP) is CodedLinear
    (record,) = caplog.records
    assert str(fails) in record.getMessage()


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("form", [fp8(), fp8(block=(GROUP, GROUP))])
def test_a_card_that_rounds_gates_wrongly_widens(
    form: Format, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launches, "gated", lambda x, gelu, group: gated(1.1 * x, gelu, group))
    assert chosen(monkeypatch, form, HOPPER, inputs=2 * GROUP) is CodedLinear
    assert "computes wrong gates on this GPU" in caplog.text
