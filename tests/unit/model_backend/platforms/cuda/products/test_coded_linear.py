"""Layers of quantized checkpoints on a GPU's kernel, in Triton's interpreter, against float64."""

from __future__ import annotations

import pytest
import torch
import triton

from mmserve.checkpoint.quantization.read import read_scheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.target import LinearShard
from mmserve.model_backend.platforms.cuda import coded_linear
from mmserve.model_backend.platforms.cuda.coded_linear import CodedLinear, CodedWeights, check_coded
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from mmserve.runtime.errors import StartupError
from tests.fakes.formats.quantized_checkpoints import Format, awq, float8, fp8, gptq, int8, packed
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

CPU = torch.device("cpu")
OUTPUTS, INPUTS = 40, 64
LIMITS = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
"""Relative errors. The interpreter cuts bfloat16 off instead of rounding it."""


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def loaded(form: Format) -> tuple[CodedLinear, torch.Tensor]:
    """A layer as the loader fills it, and the matrix in float64 that it stands for."""
    scheme = read_scheme({"quantization_config": form.config})
    assert scheme is not None
    tensors, weight = form.quantize(random(OUTPUTS, INPUTS), 0)
    made = CodedLinear(scheme, LinearShape.full(OUTPUTS, INPUTS, ("m",)), CPU)
    for name, target in made.targets(LinearShard("m", (OUTPUTS, INPUTS), slice(0, OUTPUTS), 0, 0)):
        suffix = name.removeprefix("m.")
        stored = tensors[suffix if suffix in tensors else f"{suffix}_inv"]
        target.into.copy_(stored.reshape(target.shape))
    made.finish_loading()
    return made, weight.double()


FORMS = {
    "AWQ": awq(),
    "GPTQ": gptq(),
    "act-order": gptq(desc_act=True),
    "GPTQ in 8 bits": gptq(bits=8),
    "packed": packed(),
    "one group": packed(group=None, symmetric=False),
    "int8": int8(),
    "FP8 by outputs": float8("channel"),
    "FP8 by blocks": fp8(block=(32, 32)),
}


@needs_interpreter
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_products_are_those_of_the_stored_numbers(form: Format) -> None:
    made, weight = loaded(form)
    x, bias, residual = random(3, INPUTS), random(OUTPUTS), random(3, OUTPUTS)
    expected = residual.double() + x.double() @ weight.T + bias.double()
    assert made.apply(x, bias, residual) is residual
    assert (residual - expected).norm() <= 1e-6 * expected.norm()


@needs_interpreter
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_in_any_dtype_and_number_of_rows(dtype: torch.dtype) -> None:
    made, weight = loaded(awq())
    whole = random(70, INPUTS + 3).to(dtype)
    x = whole[:, :INPUTS]
    exact = x.double() @ weight.T
    found = made.apply(x)
    assert found.dtype == dtype
    assert (found.double() - exact).norm() <= LIMITS[dtype] * exact.norm()
    assert made.apply(x[:0]).shape == (0, OUTPUTS)


def test_groups_that_no_block_fits_are_refused() -> None:
    scheme = read_scheme({"quantization_config": awq(group=32).config})
    assert scheme is not None
    layer = CodedLinear(scheme, LinearShape.full(16, 48, ("a", "b")), CPU)
    with pytest.raises(StartupError, match="a, b: groups of 32 of 48 inputs are not supported on a GPU"):
        layer.finish_loading()


@needs_interpreter
@pytest.mark.parametrize("float8", [False, True])
def test_a_gpu_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch, float8: bool) -> None:
    check_coded.cache_clear()
    check_coded(CPU, torch.float32, float8=float8)
    check_coded.cache_clear()
    monkeypatch.setattr(CodedWeights, "product", lambda self, x: x.new_zeros(len(x), len(self.codes)))
    with pytest.raises(StartupError, match="products with a quantised checkpoint are wrong on this GPU"):
        check_coded(CPU, torch.float32, float8=float8)
    check_coded.cache_clear()


def test_a_gpu_that_reads_no_fp8_refuses_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(self: CodedWeights, x: torch.Tensor) -> torch.Tensor:
        if self.codes.dtype is torch.float8_e4m3fn:
            raise triton.TritonError("type fp8e4nv not supported in this architecture")
        codes = self.codes.view(len(self.codes), -1, self.half)
        whole = torch.cat((codes & 15, codes >> 4), 2).view(len(codes), -1, self.group) - self.zeros[..., None]
        return x @ (whole * self.scales[..., None]).flatten(1).T

    monkeypatch.setattr(CodedWeights, "product", product)
    check_coded.cache_clear()
    platform, shape = CudaPlatform(CPU, torch.float32), LinearShape.full(OUTPUTS, INPUTS, ("m",))
    schemes = [read_scheme({"quantization_config": form.config}) for form in (awq(), float8("channel"))]
    assert schemes[0] is not None
    assert schemes[1] is not None
    assert isinstance(platform.checkpoint_linear_method(schemes[0], shape), CodedLinear)
    with pytest.raises(StartupError, match=r"this GPU cannot compute a quantised checkpoint .*fp8e4nv"):
        platform.checkpoint_linear_method(schemes[1], shape)
    check_coded.cache_clear()


def test_a_gpu_refuses_gguf_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded_linear, "check_coded", lambda device, dtype, float8: None)
    scheme = read_scheme({"quantization_config": awq().config})
    assert scheme is not None
    platform, shape = CudaPlatform(CPU, torch.bfloat16), LinearShape.full(OUTPUTS, INPUTS, ("m",))
    assert isinstance(platform.checkpoint_linear_method(scheme, shape), CodedLinear)
    with pytest.raises(StartupError, match="add --device cpu"):
        platform.checkpoint_linear_method(type(scheme)(method="GGUF", layout="gguf", bits=0), shape)
