"""Computes something small with a model's heads on the GPU and compares it with torch, before kernels serve anybody.

It also compiles them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mmserve.model_backend.attention.interface import (
    UNTURNED,
    AttentionBackend,
    AttentionInput,
    AttentionSpec,
    HeadTurn,
    RopeRows,
    StepLimits,
)
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.layers.head_turn import turn_heads_
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.attention.encoder import EncoderAttention
from mmserve.model_backend.platforms.cuda.attention.tiling import encoder_tiling, tiling_of
from mmserve.model_backend.platforms.cuda.trying import problem_of
from mmserve.model_backend.platforms.torch_ops import TorchOps

_CHUNKS = ((300, 1), (4, 1), (0, 1), (20, 40))
"""(start, count): several splits, one, a first token, and a prompt behind a cached prefix with an image in it."""
_IMAGE = (25, 33)
_MAX_ENCODER_DIM = 128
_BLOCKS = 20
"""Of each sequence."""
_TOLERANCES = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Of results of about 1."""


def checked_attention(
    spec: AttentionSpec,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    processors: int,
    shared_bytes: int,
) -> TritonAttention | str:
    """The backend, or why it cannot be used."""
    if not TritonAttention.supports(spec):
        return f"the kernels cannot compute heads of {spec.head_dim} numbers, {spec.group_size} queries to a key"
    sizes = tiling_of(spec, dtype, shared_bytes)
    attention = TritonAttention(spec, device, sizes, processors * sizes.split_programs)
    reference = SdpaAttention(spec, dtype, device)
    return _problem(lambda: _difference(attention, reference, spec, dtype, kv_dtype, device), dtype) or attention


def checked_encoder(head_dim: int, dtype: torch.dtype, device: torch.device) -> EncoderAttention | str:
    """The attention of a tower with such heads, or why it cannot be used."""
    if head_dim % 8 or head_dim > _MAX_ENCODER_DIM:
        return f"the kernel cannot compute heads of {head_dim} numbers"
    attention = EncoderAttention(device, encoder_tiling(dtype))
    return _problem(lambda: _encoder_difference(attention, head_dim, dtype, device), dtype) or attention


def _problem(difference: Callable[[], float], dtype: torch.dtype) -> str:
    def trial() -> str:
        found = difference()
        return "" if found < _TOLERANCES[dtype] else f"results differ by {found:.2g}"  # also for not a number

    return problem_of(trial)


def _encoder_difference(attention: EncoderAttention, head_dim: int, dtype: torch.dtype, device: torch.device) -> float:
    lengths, heads = (100, 3, 64), 2
    qkv = torch.randn(sum(lengths), 3 * heads * head_dim, generator=torch.Generator().manual_seed(0))
    outs = (
        compute(qkv.to(device, dtype), heads, lengths).float() for compute in (attention, TorchOps().encoder_attention)
    )
    return float(torch.sub(*outs).abs().max())


def _difference(
    tested: AttentionBackend[Any],
    reference: AttentionBackend[Any],
    spec: AttentionSpec,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
) -> float:
    """The largest between their results, over all masks of the model and several ways to turn heads."""
    block_tokens = tested.block_sizes[0]
    step = _step(block_tokens)
    rows, generator = len(step.slot_mapping), torch.Generator().manual_seed(0)
    heads = torch.randn(rows, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim, generator=generator)
    shape = tested.kv_shape(_BLOCKS * len(_CHUNKS), block_tokens)
    cache = torch.randn(shape, generator=generator).to(kv_dtype).to(device)
    limits = StepLimits(rows, len(_CHUNKS), _BLOCKS, block_tokens)
    largest = []
    cases = [(mask, UNTURNED) for mask in spec.masks]
    cases += [(spec.masks[0], turn) for turn in _turns(spec, rows, dtype, device)]
    for mask, turn in cases:
        outs = []
        for backend in (tested, reference):
            made = heads.to(device, dtype, copy=True)
            if not backend.turns_heads:
                turn_heads_(TorchOps(), made, spec.num_heads, spec.num_kv_heads, turn)
            kv = made[:, spec.num_heads :].view(rows, 2, spec.num_kv_heads, spec.head_dim)
            metadata, left = backend.builder(limits).build(step), turn if backend.turns_heads else UNTURNED
            outs.append(backend.forward(made[:, : spec.num_heads], kv, cache.clone(), metadata, mask, left).float())
        largest.append(float((outs[0] - outs[1]).abs().max()))
    return float(torch.tensor(largest).max())  # NaN if one of them is


def _turns(spec: AttentionSpec, rows: int, dtype: torch.dtype, device: torch.device) -> list[HeadTurn]:
    """A rotation of whole heads, and norms with a rotation of a part of the head by adjacent pairs."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.rand(spec.head_dim, generator=generator).to(device, dtype) for _ in range(2)]
    turns = []
    for pairs, norms, adjacent in ((spec.head_dim // 2, False, False), (spec.head_dim // 4, True, True)):
        angles = torch.rand(2, rows, pairs, generator=generator) * 100
        cos, sin = (each.to(device, dtype) for each in (angles.cos(), angles.sin()))
        q_norm, k_norm = weights if norms else (None, None)
        turns.append(HeadTurn(q_norm, k_norm, 1e-6, cos, sin, RopeRows(0, 1), adjacent))
    return turns


def _step(block_tokens: int) -> AttentionInput:
    starts, counts = (np.array(values) for values in zip(*_CHUNKS, strict=True))
    slots = np.arange(len(_CHUNKS))
    tables = np.random.default_rng(0).permutation(len(_CHUNKS) * _BLOCKS).reshape(len(_CHUNKS), _BLOCKS)
    positions = np.concatenate([np.arange(start, start + count) for start, count in _CHUNKS])
    mapping = tables[np.repeat(slots, counts), positions // block_tokens] * block_tokens + positions % block_tokens
    image_ends = positions + 1
    image = (np.repeat(slots, counts) == len(_CHUNKS) - 1) & (positions >= _IMAGE[0]) & (positions < _IMAGE[1])
    image_ends[image] = _IMAGE[1]
    return AttentionInput(slots, starts, counts, tables, mapping, image_ends)
