"""Decoding sequences read a prefix that they share together, and have the bits that each has alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, Mask
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.library import levels
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler, random
from tests.unit.model_backend.platforms.cpu.test_attention import BLOCK, LIMITS
from tests.unit.model_backend.platforms.cpu.test_levels import built

pytestmark = needs_compiler
CHUNKS = [
    *((start, 1, 192) for start in (300, 255, 230, 200, 193, 192, 192)),
    *((start, 1, 128) for start in (140, 130)),  # less than half of the longest before them
    *((start, 1, 64) for start in (100, 90)),
    (70, 1, 48),  # less than a key tile
    (60, 1, 0),
    (0, 1, 0),
    (192, 20, 192),  # of a prompt
]
"""(start, count, tokens that are in the first sequence's blocks) of each sequence."""


def step_of(numbers: Sequence[int]) -> AttentionInput:
    """These chunks. The blocks of a sequence are the same in every step."""
    tables = np.arange(len(CHUNKS) * 20).reshape(-1, 20)
    for table, (_, _, shared) in zip(tables, CHUNKS, strict=True):
        table[: shared // BLOCK] = tables[0, : shared // BLOCK]
    starts, counts, _ = (np.array(values) for values in zip(*(CHUNKS[number] for number in numbers), strict=True))
    positions = np.concatenate([np.arange(CHUNKS[number][0], sum(CHUNKS[number][:2])) for number in numbers])
    slots = np.array(numbers)
    blocks = tables[np.repeat(slots, counts), positions // BLOCK]
    return AttentionInput(slots, starts, counts, tables, blocks * BLOCK + positions % BLOCK)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("form", ["float32", "widened", "rounded"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (32, 8), (48, 1)])
@pytest.mark.parametrize("level", [level.name for level in levels.of_this_cpu()])
def test_a_sequence_has_the_same_bits_alone(
    level: str, heads: int, kv_heads: int, form: str, window: int | None
) -> None:
    """Of few heads, which a task has together, and of many."""
    dim, dtype = 32, torch.float32 if form == "float32" else torch.bfloat16
    spec = AttentionSpec(heads, kv_heads, dim)
    backend = PagedCpuAttention(built()[level], spec, dtype, rounds=form == "rounded")
    cache = random(*backend.kv_shape(len(CHUNKS) * 20, BLOCK), seed=1).to(dtype)
    rows = random(sum(count for _, count, _ in CHUNKS), heads + 2 * kv_heads, dim)

    def attend(numbers: Sequence[int], qkv: torch.Tensor) -> torch.Tensor:
        kv, metadata = qkv[:, heads:].unflatten(1, (2, kv_heads)), backend.builder(LIMITS).build(step_of(numbers))
        return backend.forward(qkv[:, :heads], kv, cache.clone(), metadata, Mask(window))

    parts = torch.split(rows, [count for _, count, _ in CHUNKS])
    alone = torch.cat([attend([number], part) for number, part in enumerate(parts)])
    assert torch.equal(attend(range(len(CHUNKS)), rows), alone)
