"""compressed-tensors, as LLM Compressor writes it: several formats of weights, and of inputs rounded at run time."""

from __future__ import annotations

from typing import Any, Literal, cast

from mmserve.checkpoint.quantization.fields import check_known, check_one_of, group_size_of, refused
from mmserve.checkpoint.quantization.scheme import Layout, QuantizationScheme

_METHOD = "compressed-tensors"
_FIELDS = {
    "quant_method", "format", "config_groups", "ignore", "quantization_status", "global_compression_ratio", "version",
    "sparsity_config",
}  # fmt: skip
_GROUP_FIELDS = {"targets", "weights", "input_activations", "format"}
_WEIGHT_FIELDS = {
    "num_bits", "type", "strategy", "group_size", "symmetric", "actorder", "block_structure", "observer",
    "observer_kwargs", "scale_dtype", "zp_dtype",
}  # fmt: skip
_INPUT_FIELDS = {
    "num_bits", "type", "strategy", "symmetric", "dynamic", "observer", "observer_kwargs", "group_size", "scale_dtype",
    "zp_dtype",
}  # fmt: skip
_LAYOUTS: dict[tuple[str, str], Layout] = {
    ("pack-quantized", "int"): "packed",
    ("int-quantized", "int"): "int8",
    ("naive-quantized", "int"): "int8",
    ("float-quantized", "float"): "fp8",
    ("naive-quantized", "float"): "fp8",
}
"""By format and type of the weights."""
_STRATEGIES: dict[Layout, tuple[str, ...]] = {
    "packed": ("group", "channel"),
    "int8": ("group", "channel", "tensor"),
    "fp8": ("channel", "tensor", "block"),
}
_ACT_ORDERS = {None: False, "weight": False, "static": False, "group": True, "dynamic": True}
"""Those that are True need ``weight_g_idx``; the others have groups of neighbouring inputs."""


def read_compressed_tensors(fields: dict[str, Any]) -> QuantizationScheme:
    """Raises StartupError for what is not supported."""
    check_known(fields, _FIELDS, _METHOD)
    sparsity = (fields.get("sparsity_config") or {}).get("format", "dense")
    check_one_of(_METHOD, "sparsity_config.format", sparsity, {"dense"})
    groups = fields.get("config_groups") or {}
    schemes = [_scheme_of(group, group.get("format") or fields.get("format")) for group in groups.values()]
    if not schemes:
        raise refused(f"{_METHOD} without config_groups")
    first, *others = schemes
    if any(other != first for other in others):
        raise refused(f"{_METHOD} with config_groups that differ ({'; '.join(map(str, schemes))})")
    return first


def _scheme_of(group: dict[str, Any], form: object) -> QuantizationScheme:
    check_known(group, _GROUP_FIELDS, _METHOD)
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    check_known(weights, _WEIGHT_FIELDS, f"{_METHOD} weights")
    kind = str(weights.get("type", "int"))
    layout = _LAYOUTS.get((str(form), kind))
    if layout is None:
        raise refused(f"{_METHOD} with format {form!r} and weights of type {kind!r}")
    bits, strategy = weights.get("num_bits"), weights.get("strategy")
    check_one_of(f"{_METHOD} {form}", "num_bits", bits, {4, 8} if layout == "packed" else {8})
    check_one_of(f"{_METHOD} {form}", "strategy", strategy, _STRATEGIES[layout])
    check_one_of(f"{_METHOD} {form}", "actorder", weights.get("actorder"), _ACT_ORDERS)
    symmetric, block = bool(weights.get("symmetric", True)), weights.get("block_structure")
    if layout == "fp8":
        check_one_of(f"{_METHOD} {form}", "symmetric", symmetric, {True})
    return QuantizationScheme(
        method=f"{_METHOD} {form}",
        layout=layout,
        bits=cast(Literal[4, 8], bits),
        group_size=group_size_of(_METHOD, weights.get("group_size")) if strategy == "group" else None,
        zero_points=not symmetric,
        act_order=_ACT_ORDERS[weights.get("actorder")],
        block=block_of(_METHOD, block) if strategy == "block" else None,
        per_tensor=strategy == "tensor",
        rounds_inputs=_rounds_inputs(inputs, layout),
        float8_inputs=layout == "fp8" and inputs is not None,
    )


def _rounds_inputs(inputs: dict[str, Any] | None, layout: Layout) -> bool:
    """Inputs for fp8 weights need not be, see ``float8_inputs``."""
    if inputs is None:
        return False
    check_known(inputs, _INPUT_FIELDS, f"{_METHOD} input_activations")
    method = f"{_METHOD} input_activations"
    check_one_of(method, "num_bits", inputs.get("num_bits"), {8})
    check_one_of(method, "type", inputs.get("type", "int"), {"float" if layout == "fp8" else "int"})
    if layout == "fp8":
        return False
    check_one_of(method, "format", layout, {"int8"})
    check_one_of(method, "dynamic", inputs.get("dynamic"), {True})
    check_one_of(method, "strategy", inputs.get("strategy"), {"token"})
    check_one_of(method, "symmetric", inputs.get("symmetric", True), {True})
    return True


def block_of(method: str, value: Any) -> tuple[int, int]:
    """Outputs and inputs that share a scale."""
    if isinstance(value, str):
        value = [int(each) for each in value.split("x") if each.isdecimal()]
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(each, int) and each > 0 for each in value):
        raise refused(f"{method} with blocks {value!r}")
    group_size_of(method, value[1])
    return value[0], value[1]
