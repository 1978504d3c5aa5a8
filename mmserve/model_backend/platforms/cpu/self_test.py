"""Compares every function of the C++ kernels with torch once, before they are used."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch

from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.ops import Activation, FeedForward, SelfAttention
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.decoder_checks import (
    BLOCK,
    HEADS,
    MASKS,
    TOKENS,
    prompt,
    right_decode,
    right_decoder,
)
from mmserve.model_backend.platforms.cpu.library import build, levels
from mmserve.model_backend.platforms.cpu.linear import gguf_weights, quantization
from mmserve.model_backend.platforms.cpu.linear.packed_weights import format_of, pack
from mmserve.model_backend.platforms.cpu.linear.packing import KernelLinear
from mmserve.model_backend.platforms.cpu.ops import ACTIVATIONS, KernelOps
from mmserve.model_backend.platforms.cpu.product_checks import TOLERANCE, close, random, right_products
from mmserve.model_backend.platforms.cpu.sampling import KernelSampling
from mmserve.model_backend.platforms.sampling import Draw, TorchSampling
from mmserve.model_backend.platforms.torch_ops import TorchOps
from mmserve.runtime.errors import StartupError

_ROUNDED_TOLERANCE = 1e-2
"""Relative to the largest result, for numbers that are rounded to bfloat16."""
logger = logging.getLogger(__name__)


@cache
def verified_kernels(fastest: str) -> ctypes.CDLL | None:
    """The kernels of the fastest level that can be built here and computes what torch computes; None without one.

    ``fastest``: as ``--kernel-level``. Raises StartupError if this CPU does not have that level.
    """
    try:
        possible = levels.of_this_cpu(fastest)
    except ValueError as error:
        raise StartupError(f"--kernel-level {fastest} is not for this CPU: choose auto, or one of {error}") from None
    for level in possible:
        if (kernels := build.loaded(level)) is None:
            continue
        with torch.inference_mode():
            wrong = next((name for name, is_right in _CHECKS.items() if not is_right(kernels)), None)
        if wrong is None:
            return kernels
        logger.warning(
            "of the C++ kernels for %s, %s computes wrong numbers on this machine: slower ones compute, or torch alone",
            level.name,
            wrong,
        )
    return None


def _rows(kernels: ctypes.CDLL) -> bool:
    weight, indices = random(48, 64), torch.tensor([47, 0, 17])
    int8 = gguf_weights.pack([(quantization.INT8, weight)], quantization.rounded)
    short = weight.bfloat16().float()
    for packed, form, expected in (
        (plain := pack(weight), format_of(plain), weight[indices]),
        (halved := pack(short), format_of(halved), short[indices]),
        (int8, gguf_weights.FORMAT, quantization.numbers(quantization.INT8, weight)[indices]),
    ):
        out = torch.empty(3, 64)
        kernels.mm_rows(packed.data_ptr(), form, indices.data_ptr(), out.data_ptr(), *out.shape)
        if not torch.equal(out, expected):
            return False
    return True


def _same_operation(compute: Callable[[TorchOps], torch.Tensor], kernels: ctypes.CDLL) -> bool:
    """True if the kernels' operations give what torch's give; those for bfloat16 within its rounding."""
    exact, rounded, expected = map(compute, (KernelOps(kernels), KernelOps(kernels, rounds=True), TorchOps()))
    return close(exact, expected) and close(rounded, expected, _ROUNDED_TOLERANCE)


def _encoder_attention(kernels: ctypes.CDLL) -> bool:
    qkv, lengths = random(240, 144), (170, 17, 53)
    expected = TorchOps().encoder_attention(qkv, 2, lengths)
    exact, rounded = (KernelOps(kernels, rounds=rounds).encoder_attention(qkv, 2, lengths) for rounds in (False, True))
    return close(exact, expected) and close(rounded, expected, _ROUNDED_TOLERANCE)


def _rotated(ops: TorchOps) -> torch.Tensor:
    heads, angles = random(TOKENS, 3, 16), random(TOKENS, 8, seed=1)
    ops.rotary_(heads[:, :2], angles.cos(), angles.sin())
    part = angles[:, :3].contiguous()
    ops.rotary_(heads[:, 1:], part.cos(), part.sin())
    ops.rotary_(heads[:, 1:], part.cos(), part.sin(), adjacent=True)
    return heads


def _activated(function_of: Callable[[str], Activation]) -> torch.Tensor:
    return torch.cat([function_of(name)(random(5, 32)) for name in ACTIVATIONS])


def _added(ops: TorchOps) -> torch.Tensor:
    sums = random(TOKENS, 30)
    ops.add_scaled_(sums, random(TOKENS, 30, seed=1), random(30, seed=2))
    return sums


class _Product(NamedTuple):
    method: KernelLinear
    bias: torch.Tensor


def _product(kernels: ctypes.CDLL, outputs: int, inputs: int) -> _Product:
    method = KernelLinear(kernels, LinearShape.full(outputs, inputs))
    method.weight.copy_(random(outputs, inputs) / 8)
    method.finish_loading()
    return _Product(method, random(outputs, seed=1))


def _feed_forward(kernels: ctypes.CDLL) -> bool:
    """A block in one call gives the bits of its operations one by one, which the other checks compare."""
    product = partial(_product, kernels)
    ops, weight, bias = KernelOps(kernels), random(32), random(32, seed=1)
    plain = FeedForward(weight, bias, 1e-5, product(48, 32), "silu", product(32, 48), scale=bias)
    gated = FeedForward(weight, None, 1e-5, product(96, 32), "silu", product(32, 48), gated=True)
    for block in (plain, gated):
        found, expected = random(150, 32), random(150, 32)
        ops.feed_forward_(found, block)
        TorchOps.feed_forward_(ops, expected, block)
        if not torch.equal(found, expected):
            return False
    return True


def _self_attention(kernels: ctypes.CDLL) -> bool:
    """As ``_feed_forward``."""
    ops, weight, bias, lengths = KernelOps(kernels), random(32), random(32, seed=1), (200, 60, 17)
    block = SelfAttention(weight, bias, 1e-5, _product(kernels, 96, 32), 2, _product(kernels, 32, 32))
    found, expected = random(277, 32), random(277, 32)
    ops.self_attention_(found, lengths, block)
    TorchOps.self_attention_(ops, expected, lengths, block)
    return torch.equal(found, expected)


def _head_norm(ops: TorchOps) -> torch.Tensor:
    heads = random(TOKENS, 3, 16)
    ops.head_norm_(heads[:, 1:], random(16, seed=1), 1e-5)
    return heads


def _attention(kernels: ctypes.CDLL) -> bool:
    exact = (PagedCpuAttention(kernels, HEADS, dtype) for dtype in (torch.float32, torch.bfloat16))
    rounded = PagedCpuAttention(kernels, HEADS, torch.bfloat16, rounds=True)
    return all(map(_attends, exact)) and _attends(rounded, _ROUNDED_TOLERANCE)


def _attends(kernel: PagedCpuAttention, tolerance: float = TOLERANCE) -> bool:
    step, limits = prompt()
    qkv, results = random(TOKENS, 2 * HEADS.num_heads, HEADS.head_dim), []
    for backend in (kernel, SdpaAttention(HEADS, torch.float32, torch.device("cpu"))):
        cache = torch.zeros(backend.kv_shape(limits.max_blocks, BLOCK), dtype=kernel.kv_dtype)
        heads = qkv.clone()
        kv = heads[:, HEADS.num_heads :].view(TOKENS, 2, HEADS.num_kv_heads, HEADS.head_dim)
        metadata = backend.builder(limits).build(step)
        q = heads[:, : HEADS.num_heads]
        outs = [backend.forward(q, kv, cache, metadata, mask) for mask in MASKS]  # type: ignore[arg-type]
        results.append((torch.stack(outs), cache))
    (found, found_cache), (expected, expected_cache) = results
    return close(found, expected, tolerance) and torch.equal(kernel.token_major(found_cache), expected_cache)


def _sample(kernels: ctypes.CDLL) -> bool:
    free = Draw(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, key=0x123456789ABCDEF0)
    cuts = (free, free._replace(temperature=0.0), free._replace(top_k=9), free._replace(top_p=0.8))
    draws = [*cuts, free._replace(min_p=0.1), free._replace(top_k=900, top_p=0.999)]
    found, expected = (
        [each.choose(logits, draws, may_ban=False) for logits in (3 * random(6, 1100), random(6, 9000))]
        for each in (KernelSampling(kernels), TorchSampling())
    )
    return all(map(torch.equal, found, expected))


def _finite(kernels: ctypes.CDLL) -> bool:
    logits = random(4, 30)
    logits[1, 29], logits[2, 3] = float("nan"), float("-inf")
    return KernelSampling(kernels).finite(logits).tolist() == [True, False, False, True]


def _ban(kernels: ctypes.CDLL) -> bool:
    generator = torch.Generator().manual_seed(0)
    allowed = torch.randint(-(1 << 31), 1 << 31, (3, 4), generator=generator).int()
    allowed[0, 1], allowed[0, 2] = 0, -1
    found, expected = random(5, 100), random(5, 100)
    KernelSampling(kernels).ban(found, [4, 0, 2], allowed)
    TorchSampling().ban(expected, [4, 0, 2], allowed)
    return torch.equal(found, expected)


_CHECKS: dict[str, Callable[[ctypes.CDLL], bool]] = {
    "mm_linear": right_products,
    "mm_rows": _rows,
    "mm_rms_norm": partial(_same_operation, lambda ops: ops.rms_norm(random(5, 32), random(32, seed=1), 1e-5)),
    "mm_head_norm": partial(_same_operation, _head_norm),
    "mm_layer_norm": partial(
        _same_operation, lambda ops: ops.layer_norm(random(5, 32), random(32, seed=1), random(32, seed=2), 1e-5)
    ),
    "mm_add_scaled": partial(_same_operation, _added),
    "mm_rotate": partial(_same_operation, _rotated),
    "mm_activation": partial(_same_operation, lambda ops: _activated(ops.activation)),
    "mm_act_and_mul": partial(_same_operation, lambda ops: _activated(ops.act_and_mul)),
    "mm_attention": _attention,
    "mm_encoder_attention": _encoder_attention,
    "mm_feed_forward": _feed_forward,
    "mm_self_attention": _self_attention,
    "mm_decoder": right_decoder,
    "mm_sample": _sample,
    "mm_decode": right_decode,
    "mm_finite": _finite,
    "mm_ban": _ban,
}
"""By function of the kernels, in an order in which each uses only functions checked before."""
