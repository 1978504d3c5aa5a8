"""Compares a loaded model with transformers' own attention, before it serves: a difference would be wrong answers.

It finds what no config tells: layers that mix tokens outside attention, positions that a module computes by itself,
scales that are applied elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionInput, StepLimits
from mmserve.model_backend.models.generic import attention
from mmserve.model_backend.models.generic.decoder import GenericDecoder
from mmserve.runtime.errors import StartupError

_LENGTHS = (29, 16)
_STEPS = (((0, 0, 13), (1, 0, 1)), ((0, 13, 15), (1, 1, 14)), ((0, 28, 1), (1, 15, 1)))
"""(sequence, start, number of tokens): two prompts at once, in chunks that end within blocks, then decoding."""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.1}
"""Of a row's logits: length of the difference through length of the row."""
logger = logging.getLogger(__name__)


@torch.inference_mode()
def check(
    decoder: GenericDecoder, spec: TextSpec, backend: AttentionBackend[Any], dtype: torch.dtype, device: torch.device
) -> None:
    """Raises StartupError if the model writes other logits in steps than transformers does in one pass."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(spec.vocab_size, (length,), generator=generator).to(device) for length in _LENGTHS]
    expected = [_reference(decoder.parts.whole, text)[:, : spec.vocab_size] for text in texts]
    kv_cache = torch.zeros(_kv_shape(spec, backend), dtype=dtype, device=device)
    found = _in_steps(decoder, texts, backend, kv_cache)
    worst = max(_difference(*pair) for pair in zip(found, expected, strict=True))
    logger.info("transformers' modules with paged attention differ by %.1e from those with their own", worst)
    if not worst <= _TOLERANCE[dtype]:
        raise StartupError(
            f"{type(decoder.parts.whole).__name__} computes something else with paged attention than with its own "
            f"(logits differ by {worst:.2g}): it cannot be served through transformers"
        )


def _reference(model: Any, token_ids: torch.Tensor) -> torch.Tensor:
    """int64 [T] -> logits [T, vocab] as transformers computes them by itself."""
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    try:
        return model(input_ids=token_ids[None], use_cache=False).logits[0]  # type: ignore[no-any-return]
    finally:
        model.set_attn_implementation(attention.NAME)


def _blocks(length: int, block_tokens: int) -> int:
    return -(-length // block_tokens)


def _kv_shape(spec: TextSpec, backend: AttentionBackend[Any]) -> tuple[int, ...]:
    block_tokens = backend.block_sizes[0]
    num_blocks = sum(_blocks(length, block_tokens) for length in _LENGTHS)
    return (spec.num_layers, *backend.kv_shape(num_blocks, block_tokens))


def _in_steps(
    decoder: GenericDecoder, texts: Sequence[torch.Tensor], backend: AttentionBackend[Any], kv_cache: torch.Tensor
) -> list[torch.Tensor]:
    """Logits [T, vocab] of each text."""
    block_tokens = backend.block_sizes[0]
    counts = [_blocks(length, block_tokens) for length in _LENGTHS]
    tables = np.zeros((len(texts), max(counts)), dtype=np.int64)
    # The first text has the later blocks, so that the number of a block is not its place.
    tables[1, : counts[1]] = np.arange(counts[1])
    tables[0, : counts[0]] = counts[1] + np.arange(counts[0])
    builder = backend.builder(StepLimits(sum(_LENGTHS), len(texts), max(counts), block_tokens))
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    for chunks in _STEPS:
        # Chunks of one row come first, those of the longest context before others.
        ordered = sorted(chunks, key=lambda chunk: (chunk[2] > 1, -chunk[1]))
        slots, starts, sizes = (np.array(column, dtype=np.int64) for column in zip(*ordered, strict=True))
        positions = np.concatenate([np.arange(start, start + size) for _, start, size in ordered])
        rows = np.repeat(slots, sizes)
        mapping = tables[rows, positions // block_tokens] * block_tokens + positions % block_tokens
        metadata = builder.build(AttentionInput(slots, starts, sizes, tables, mapping))
        ids = torch.cat([texts[slot][start : start + size] for slot, start, size in ordered])
        where = torch.from_numpy(positions)[None].to(ids.device)
        all_rows = torch.arange(len(ids), device=ids.device)
        outputs = decoder.forward(decoder.embed(ids), where, kv_cache, metadata, all_rows)
        logits = torch.split(decoder.logits(outputs), sizes.tolist())
        for slot, part in zip(slots.tolist(), logits, strict=True):
            found[slot].append(part)
    return [torch.cat(parts) for parts in found]


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest of the rows."""
    found, expected = found.double(), expected.double()
    length = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1).clamp_min(1e-12)
    return float(((found - expected).norm(dim=-1) / length).max())
