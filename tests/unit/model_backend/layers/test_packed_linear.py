"""Packed or plain, a product is the same, and a CPU that cannot pack keeps plain weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers import packed_linear as packed
from mmserve.model_backend.layers.linear import ColumnParallelLinear, pack_linears
from mmserve.model_backend.platforms.cpu import kernels
from mmserve.runtime.errors import StartupError


def layer(dtype: torch.dtype) -> ColumnParallelLinear:
    made = ColumnParallelLinear(24, [("a", 8), ("b", 4)], bias=True, tp=TpGroup(), like=torch.empty(0, dtype=dtype))
    generator = torch.manual_seed(4)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 33])
def test_the_same_product(dtype: torch.dtype, rows: int) -> None:
    linear = layer(dtype)
    x = torch.randn(rows, 48).to(dtype)[:, :24]
    expected = F.linear(x, linear.weight, linear.bias)
    pack_linears(linear)
    with torch.inference_mode():
        torch.testing.assert_close(linear(x), expected, rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-2)


def test_a_failed_self_test_leaves_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_works", lambda dtype: False)
    linear = layer(torch.float32)
    pack_linears(linear)
    assert not linear.weight.is_mkldnn


def test_without_kernels_quantized_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "usable", lambda x: False)
    with pytest.raises(StartupError, match="compiler"):
        pack_linears(layer(torch.float32), "int4")
