"""``quantization_config`` is read into a scheme; what is not known is refused with its name."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.checkpoint.quantization.read import read_scheme
from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.runtime.errors import StartupError

AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": ["visual"],
}
GPTQ: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 128,
    "damp_percent": 0.1,
    "desc_act": False,
    "sym": True,
    "true_sequential": True,
    "dataset": ["a text"],
    "use_exllama": True,
}


def compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*vision.*"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
    } | more


W4: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
W8: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
A8: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
F8: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
PACKED, INT8, FLOAT8 = (f"compressed-tensors {form}-quantized" for form in ("pack", "int", "float"))


@pytest.mark.parametrize(
    ("fields", "scheme", "described"),
    [
        (
            AWQ,
            QuantizationScheme(method="AWQ", layout="awq", bits=4, group_size=128, zero_points=True),
            "AWQ, 4 bits, groups of 128, zero points",
        ),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"},
            QuantizationScheme(method="AWQ", layout="awq", bits=4, group_size=64, zero_points=True),
            "AWQ, 4 bits, groups of 64, zero points",
        ),
        (
            GPTQ,
            QuantizationScheme(method="GPTQ", layout="gptq", bits=4, group_size=128, zero_offset=1),
            "GPTQ, 4 bits, groups of 128",
        ),
        (
            GPTQ | {"bits": 8, "group_size": -1, "desc_act": True, "sym": False, "checkpoint_format": "gptq_v2"},
            QuantizationScheme(method="GPTQ", layout="gptq", bits=8, zero_points=True, act_order=True),
            "GPTQ, 8 bits, one scale an output, zero points, act-order",
        ),
        (
            compressed("pack-quantized", W4),
            QuantizationScheme(method=PACKED, layout="packed", bits=4, group_size=128),
            f"{PACKED}, 4 bits, groups of 128",
        ),
        (
            compressed("pack-quantized", W4 | {"symmetric": False, "actorder": "group"}),
            QuantizationScheme(
                method=PACKED, layout="packed", bits=4, group_size=128, zero_points=True, act_order=True
            ),
            f"{PACKED}, 4 bits, groups of 128, zero points, act-order",
        ),
        (
            compressed("int-quantized", W8, A8),
            QuantizationScheme(method=INT8, layout="int8", bits=8, rounds_inputs=True),
            f"{INT8}, 8 bits, one scale an output, inputs rounded to 8 bits",
        ),
        (
            compressed("naive-quantized", W8 | {"strategy": "tensor"}),
            QuantizationScheme(method="compressed-tensors naive-quantized", layout="int8", bits=8, per_tensor=True),
            "compressed-tensors naive-quantized, 8 bits, one scale a matrix",
        ),
        (
            compressed(
                "float-quantized", F8 | {"strategy": "block", "block_structure": [128, 128]}, A8 | {"type": "float"}
            ),
            QuantizationScheme(method=FLOAT8, layout="fp8", bits=8, block=(128, 128), float8_inputs=True),
            f"{FLOAT8}, 8 bits, blocks of 128 x 128",
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"},
            QuantizationScheme(method="FP8", layout="fp8", bits=8, block=(128, 128), float8_inputs=True),
            "FP8, 8 bits, blocks of 128 x 128",
        ),
        (
            compressed("float-quantized", F8),
            QuantizationScheme(method=FLOAT8, layout="fp8", bits=8),
            f"{FLOAT8}, 8 bits, one scale an output",
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
            QuantizationScheme(method="FP8", layout="fp8", bits=8, per_tensor=True, float8_inputs=True),
            "FP8, 8 bits, one scale a matrix",
        ),
    ],
)
@pytest.mark.parametrize("place", ["quantization_config", "compression_config", "text_config", "llm_config"])
def test_published_schemes(fields: dict[str, Any], scheme: QuantizationScheme, described: str, place: str) -> None:
    config = {place: {"quantization_config": fields} if place in ("text_config", "llm_config") else fields}
    assert read_scheme({"model_type": "llama"} | config) == scheme
    assert str(scheme) == described


def test_a_checkpoint_without_quantization_has_no_scheme() -> None:
    assert read_scheme({"model_type": "llava", "text_config": {"model_type": "llama"}}) is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method 'bitsandbytes'"),
        ({"bits": 4}, "quant_method None"),
        ([], "quant_method None"),
        (AWQ | {"version": "gemv"}, "AWQ with version 'gemv'"),
        (AWQ | {"bits": 8}, "AWQ with bits 8"),
        (AWQ | {"zero_point": False}, "AWQ with zero_point False"),
        (AWQ | {"rotation": "hadamard"}, "AWQ with rotation 'hadamard'"),
        (GPTQ | {"bits": 3}, "GPTQ with bits 3"),
        (GPTQ | {"group_size": 16}, "GPTQ with group_size 16"),
        (GPTQ | {"group_size": 48}, "GPTQ with group_size 48"),
        (GPTQ | {"group_size": "all"}, "GPTQ with group_size 'all'"),
        (GPTQ | {"checkpoint_format": "marlin"}, "GPTQ with checkpoint_format 'marlin'"),
        (GPTQ | {"pack_dtype": "int64"}, "GPTQ with pack_dtype 'int64'"),
        (GPTQ | {"dynamic": {"-:.*mlp.*": {}}}, "GPTQ with dynamic"),
        (compressed("nvfp4-pack-quantized", F8 | {"num_bits": 4}), "compressed-tensors with format 'nvfp4-pack-"),
        (compressed("marlin-24", W4), "compressed-tensors with format 'marlin-24'"),
        (compressed("pack-quantized", W4 | {"num_bits": 3}), f"{PACKED} with num_bits 3"),
        (compressed("pack-quantized", W4 | {"strategy": "tensor_group"}), f"{PACKED} with strategy 'tensor_group'"),
        (compressed("pack-quantized", W4 | {"actorder": "random"}), f"{PACKED} with actorder 'random'"),
        (compressed("pack-quantized", W4, A8), "compressed-tensors input_activations with format 'packed'"),
        (compressed("int-quantized", W8, A8 | {"dynamic": False}), "compressed-tensors input_activations with dynamic"),
        (compressed("int-quantized", W8, A8 | {"symmetric": False}), "compressed-tensors input_activations with symm"),
        (
            compressed("int-quantized", W8, A8 | {"strategy": "tensor"}),
            "compressed-tensors input_activations with stra",
        ),
        (compressed("pack-quantized", W4, kv_cache_scheme=A8), "compressed-tensors with kv_cache_scheme"),
        (compressed("pack-quantized", W4, transform_config={"R1": 1}), "compressed-tensors with transform_config"),
        (
            compressed("pack-quantized", W4, sparsity_config={"format": "sparse-24-bitmask"}),
            "compressed-tensors with sparsity_config.format 'sparse-24-bitmask'",
        ),
        (
            compressed(
                "pack-quantized", W4, config_groups={"a": {"weights": W4}, "b": {"weights": W4 | {"num_bits": 8}}}
            ),
            "compressed-tensors with config_groups that differ",
        ),
        (compressed("pack-quantized", W4, config_groups={}), "compressed-tensors without config_groups"),
        (compressed("float-quantized", F8 | {"symmetric": False}), f"{FLOAT8} with symmetric False"),
        (compressed("float-quantized", F8 | {"strategy": "block"}), "compressed-tensors with blocks None"),
        ({"quant_method": "fp8", "scale_fmt": "ue8m0"}, "FP8 with scale_fmt 'ue8m0'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "FP8 with fmt 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 48]}, "FP8 with group_size 48"),
    ],
)
def test_what_is_not_known_is_refused_by_name(fields: Any, named: str) -> None:
    with pytest.raises(StartupError, match=f"^quantised checkpoint: {named}.*not supported"):
        read_scheme({"quantization_config": fields})


def test_fields_that_say_nothing_are_accepted() -> None:
    assert read_scheme({"quantization_config": GPTQ | {"dynamic": {}, "adapter": None}}) is not None
