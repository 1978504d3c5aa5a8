"""Weights in 8-bit floating point (E4M3), as AutoFP8, DeepSeek and transformers write them."""

from __future__ import annotations

from typing import Any

from mmserve.checkpoint.quantization.compressed_tensors import block_of
from mmserve.checkpoint.quantization.fields import check_known, check_one_of
from mmserve.checkpoint.quantization.scheme import QuantizationScheme

_FIELDS = {
    "quant_method", "activation_scheme", "weight_block_size", "modules_to_not_convert", "ignored_layers", "fmt",
}  # fmt: skip


def read_fp8(fields: dict[str, Any]) -> QuantizationScheme:
    """Raises StartupError for what is not supported. Static scales of inputs are not used."""
    check_known(fields, _FIELDS, "FP8")
    check_one_of("FP8", "fmt", fields.get("fmt", "e4m3"), {"e4m3", "float8_e4m3fn"})
    check_one_of("FP8", "activation_scheme", fields.get("activation_scheme", "dynamic"), {"dynamic", "static"})
    block = fields.get("weight_block_size")
    return QuantizationScheme(
        method="FP8",
        layout="fp8",
        bits=8,
        block=None if block is None else block_of("FP8", block),
        per_tensor=block is None,
        float8_inputs=True,
    )
