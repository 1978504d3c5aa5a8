"""AWQ (Lin et al. 2023) and GPTQ (Frantar et al. 2022) as AutoAWQ, AutoGPTQ and GPTQModel write them."""

from __future__ import annotations

from typing import Any, Literal, cast

from mmserve.checkpoint.quantization.fields import check_known, check_one_of, group_size_of, refused
from mmserve.checkpoint.quantization.scheme import QuantizationScheme

_AWQ_FIELDS = {
    "quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "modules_to_not_convert",
    "backend",
}  # fmt: skip
_GPTQ_FIELDS = {"quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format"}
_GPTQ_FORMATS = {"gptq": 1, "gptq_v2": 0}
"""By ``checkpoint_format``: version 1 stores zero points less one."""
_ABOUT_THE_MAKING = {
    "dataset", "tokenizer", "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "batch_size",
    "model_name_or_path", "model_file_base_name", "model_seqlen", "block_name_to_quantize", "meta", "quantizer",
    "module_name_preceding_first_block", "modules_in_block_to_quantize", "pad_token_id", "cache_block_outputs",
    "act_group_aware", "mse", "lm_head", "modules_to_not_convert",
}  # fmt: skip
"""Fields of GPTQ about its making, or about which modules are quantized, which the stored tensors show."""
_ABOUT_OTHER_KERNELS = {
    "use_cuda_fp16", "use_exllama", "disable_exllama", "exllama_config", "max_input_length", "backend", "do_fuse",
    "fuse_max_seq_len", "modules_to_fuse", "pack_dtype",
}  # fmt: skip


def read_awq(fields: dict[str, Any]) -> QuantizationScheme:
    """Raises StartupError for what is not supported."""
    check_known(fields, _AWQ_FIELDS | _ABOUT_OTHER_KERNELS, "AWQ")
    version = str(fields.get("version", "gemm")).lower()
    check_one_of("AWQ", "version", version, {"gemm"})
    check_one_of("AWQ", "bits", fields.get("bits", fields.get("w_bit", 4)), {4})
    check_one_of("AWQ", "zero_point", fields.get("zero_point", True), {True})
    return QuantizationScheme(
        method="AWQ",
        layout="awq",
        bits=4,
        group_size=group_size_of("AWQ", fields.get("group_size", fields.get("q_group_size", 128))),
        zero_points=True,
    )


def read_gptq(fields: dict[str, Any]) -> QuantizationScheme:
    """Raises StartupError for what is not supported."""
    check_known(fields, _GPTQ_FIELDS | _ABOUT_THE_MAKING | _ABOUT_OTHER_KERNELS, "GPTQ")
    check_one_of("GPTQ", "bits", fields.get("bits"), {4, 8})
    stored = fields.get("checkpoint_format") or "gptq"
    if stored not in _GPTQ_FORMATS:
        raise refused(f"GPTQ with checkpoint_format {stored!r}")
    check_one_of("GPTQ", "pack_dtype", fields.get("pack_dtype") or "int32", {"int32"})
    return QuantizationScheme(
        method="GPTQ",
        layout="gptq",
        bits=cast(Literal[4, 8], fields["bits"]),
        group_size=group_size_of("GPTQ", fields.get("group_size", -1)),
        zero_points=not fields.get("sym", True),
        zero_offset=_GPTQ_FORMATS[stored],
        act_order=bool(fields.get("desc_act", False)),
    )
