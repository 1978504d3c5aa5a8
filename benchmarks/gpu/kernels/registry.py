"""All kernels that are compared with float64. A kernel that replaces torch's on a platform is compared by its entry
here as soon as the platform uses it; one with a call of its own needs an entry."""

from __future__ import annotations

from benchmarks.gpu.kernels import attention, coded, experts, ops, rounded
from benchmarks.gpu.kernels.case import Kernel

KERNELS = (
    Kernel("paged attention", attention.paged_attention),
    Kernel("rms_norm", ops.rms_norm),
    Kernel("head_norm", ops.head_norm),
    Kernel("add_normed", ops.add_normed),
    Kernel("rotary", ops.rotary),
    Kernel("act_and_mul", ops.act_and_mul),
    Kernel("linear", ops.linear),
    Kernel("mixture of experts", experts.mixture),
    Kernel("product with codes", coded.product_with_codes, ("bfloat16", "float16")),
    Kernel("product in FP8", coded.product_in_fp8, ("bfloat16",)),
    Kernel("product with an FP8 checkpoint", coded.product_with_float8, ("bfloat16",)),
    Kernel("product with an FP8 checkpoint in blocks", coded.product_with_blocks, ("bfloat16",)),
    Kernel("norm in FP8", rounded.normed, ("bfloat16",)),
    Kernel("attention in FP8", rounded.attended, ("bfloat16",)),
    Kernel("act_and_mul in FP8", rounded.gated, ("bfloat16",)),
    Kernel("encoder attention", ops.encoder_attention),
    Kernel("layer_norm", ops.layer_norm),
    Kernel("add_scaled", ops.add_scaled),
)
