"""Several threads read the segments of one long sequence; its bits are those that one thread computes."""

from __future__ import annotations

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
LENGTH = 2_200  # three segments
SHARED = 2_112  # tokens in the same blocks as those of the second sequence, whole key tiles
CHUNK = 20
NUM_SHORT = 14
"""Sequences of a few tokens. With so many the three threads have tasks enough, and none is divided."""

Chunk = tuple[int, int, int]
"""(sequence, start, count)."""
LONG, OTHER = (0, LENGTH - 1, 1), (1, LENGTH - 30, 1)
SHORT = [(2 + number, 5, 1) for number in range(NUM_SHORT)]


def step_of(chunks: tuple[Chunk, ...]) -> AttentionInput:
    tables = np.arange((2 + NUM_SHORT) * 140).reshape(-1, 140)
    tables[1, : SHARED // BLOCK] = tables[0, : SHARED // BLOCK]
    slots, starts, counts = (np.array(values) for values in zip(*chunks, strict=True))
    positions = np.concatenate([np.arange(start, start + count) for _, start, count in chunks])
    blocks = tables[np.repeat(slots, counts), positions // BLOCK]
    return AttentionInput(slots, starts, counts, tables, blocks * BLOCK + positions % BLOCK)


@pytest.mark.parametrize("window", [None, 1_500])
@pytest.mark.parametrize("form", ["float32", "widened", "rounded"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (24, 1)])
@pytest.mark.parametrize("level", [level.name for level in levels.of_this_cpu()])
def test_a_long_sequence_has_the_same_bits_however_its_keys_are_divided(
    level: str, heads: int, kv_heads: int, form: str, window: int | None
) -> None:
    dim, dtype = 32, torch.float32 if form == "float32" else torch.bfloat16
    spec = AttentionSpec(heads, kv_heads, dim)
    backend = PagedCpuAttention(built()[level], spec, dtype, rounds=form == "rounded")
    cache = 3 * random(*backend.kv_shape((2 + NUM_SHORT) * 140, BLOCK), seed=1).to(dtype)
    rows = {sequence: 3 * random(CHUNK, heads + 2 * kv_heads, dim, seed=sequence) for sequence in range(2 + NUM_SHORT)}

    def attend(*chunks: Chunk) -> torch.Tensor:
        qkv = torch.cat([rows[sequence][CHUNK - count :] for sequence, _, count in chunks])
        kv, metadata = qkv[:, heads:].unflatten(1, (2, kv_heads)), backend.builder(LIMITS).build(step_of(chunks))
        return backend.forward(qkv[:, :heads], kv, cache, metadata, Mask(window))

    of_a_chunk = attend((0, LENGTH - CHUNK, CHUNK))[-1:]
    alone = attend(LONG)
    assert torch.equal(of_a_chunk, alone)
    assert torch.equal(attend(LONG, *SHORT)[:1], alone)
    assert torch.equal(attend(LONG, OTHER), torch.cat([alone, attend(OTHER)]))
