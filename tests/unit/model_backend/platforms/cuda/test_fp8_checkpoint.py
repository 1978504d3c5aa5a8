"""Layers of FP8 checkpoints on a GPU: which way a layer takes, and that of FP8 units against float64.

The product is torch's on a CPU; on a GPU the battery compares it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mmserve.checkpoint.quantization.read import read_scheme
from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.config.resolved.gpu_capability import ADA, Capability
from mmserve.model_backend.layers.linear_method import LinearMethod, LinearShape
from mmserve.model_backend.layers.target import LinearShard
from mmserve.model_backend.platforms.cuda import coded_linear, fp8_linear
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu
from mmserve.model_backend.platforms.cuda.coded_linear import CodedLinear
from mmserve.model_backend.platforms.cuda.fp8_linear import Fp8Linear, Rows, StoredSource, quantized, scaled_product
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from tests.fakes.quantized_checkpoints import Format, awq, float8, fp8

CPU = torch.device("cpu")
OUTPUTS, INPUTS = 48, 64
FORMS = {"tensor": float8("tensor"), "channel": float8("channel"), "fp8": fp8(), "static inputs": fp8(static=True)}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def scheme_of(form: Format) -> QuantizationScheme:
    scheme = read_scheme({"quantization_config": form.config})
    assert scheme is not None
    return scheme


def loaded(layer: LinearMethod, form: Format, shards: dict[str, LinearShard]) -> torch.Tensor:
    """Fills the layer as the loader does; returns the matrix that it stands for, in float64."""
    parts = []
    for factor, (name, shard) in enumerate(shards.items(), 1):
        tensors, weight = form.quantize(factor**3 * random(*shard.shape), 0)
        for full_name, target in layer.targets(shard):
            stored = tensors[full_name.removeprefix(f"{name}.")].reshape(target.shape)
            target.into.copy_(stored.narrow(target.dim, target.start, target.into.shape[target.dim]))
        rows = shard.rows.stop - shard.rows.start
        parts.append(weight.narrow(shard.dim, shard.start, rows if shard.dim == 0 else INPUTS))
    layer.finish_loading()
    return torch.cat(parts).double()


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
    form: Format, shards: dict[str, LinearShard]
) -> None:
    """Fused matrices have scales of their own, which differ by a factor of 8."""
    shape = LinearShape.full(OUTPUTS, INPUTS, tuple(shards))
    layer = Fp8Linear(StoredSource(scheme_of(form), shape), torch.bfloat16, CPU, scaled_product, quantized)
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


def test_the_product_is_told_one_scale_a_row_and_one_an_output() -> None:
    """Where one scale is for a whole matrix, too: the GPU then computes both kinds in one way."""
    told: list[Rows] = []

    def product(x: Rows, weight: Rows, dtype: torch.dtype) -> torch.Tensor:
        told.extend((x, weight))
        return scaled_product(x, weight, dtype)

    shape = LinearShape.full(OUTPUTS, INPUTS, ("q", "k"))
    layer = Fp8Linear(StoredSource(scheme_of(fp8()), shape), torch.bfloat16, CPU, product, quantized)
    loaded(layer, fp8(), WHOLE)
    layer.apply(random(3, INPUTS).bfloat16())
    for (numbers, scales), rows in zip(told, (3, OUTPUTS), strict=True):
        assert (numbers.dtype, numbers.shape) == (torch.float8_e4m3fn, (rows, INPUTS))
        assert (scales.dtype, scales.shape) == (torch.float32, (rows, 1))
        assert numbers.is_contiguous()
        assert scales.is_contiguous()
    _, of_outputs = told[1]
    assert [len(part.unique()) for part in of_outputs.split([32, 16])] == [1, 1]
    assert of_outputs[0] != of_outputs[-1]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU whose kernels compute, the inputs' rounding by torch."""
    monkeypatch.setattr(coded_linear, "check_coded", lambda device, dtype, float8: None)
    monkeypatch.setattr(fp8_linear, "quantized_in_one_launch", quantized)
    for cached in (fp8_linear.problem_with_fp8, fp8_linear.works_for_checkpoints):
        cached.cache_clear()
    yield
    for cached in (fp8_linear.problem_with_fp8, fp8_linear.works_for_checkpoints):
        cached.cache_clear()


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    form: Format,
    capability: Capability = ADA,
    dtype: torch.dtype = torch.bfloat16,
    outputs: int = OUTPUTS,
) -> type:
    monkeypatch.setattr(Gpu, "of", lambda device: Gpu(device, capability, 1, 0))
    shape = LinearShape.full(outputs, INPUTS, ("q", "k"))
    return type(CudaPlatform(CPU, dtype).checkpoint_linear_method(scheme_of(form), shape))


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_cards_with_fp8_units_multiply_in_fp8(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, form) is Fp8Linear
    assert chosen(monkeypatch, form, (12, 0)) is Fp8Linear
    assert chosen(monkeypatch, form, (8, 6)) is CodedLinear


def weights_alone() -> Format:
    form = float8("channel")
    (group,) = form.config["config_groups"].values()
    return form._replace(config=form.config | {"config_groups": {"g": group | {"input_activations": None}}})


@pytest.mark.usefixtures("checked")
def test_blocks_other_formats_and_exact_inputs_take_the_kernel_that_widens(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in (fp8(block=(32, 32)), awq(), weights_alone()):
        assert chosen(monkeypatch, form) is CodedLinear
    assert chosen(monkeypatch, fp8(), dtype=torch.float32) is CodedLinear
    assert chosen(monkeypatch, fp8(), outputs=40) is CodedLinear


@pytest.mark.usefixtures("checked")
def test_a_card_that_fails_the_comparison_widens_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fp8_linear, "scaled_product", lambda x, weight, dtype: x[0].to(dtype) @ weight[0].to(dtype).T)
    assert chosen(monkeypatch, fp8()) is CodedLinear
    assert chosen(monkeypatch, float8("channel")) is CodedLinear
    (record,) = caplog.records
    assert "torch._scaled_mm computes wrong products on this GPU" in record.getMessage()
