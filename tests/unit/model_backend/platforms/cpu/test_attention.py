"""The paged attention kernel computes what the torch reference computes, and depends on a row's own sequence alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, Mask, StepLimits
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler, random

pytestmark = needs_compiler
BLOCK = PagedCpuAttention.block_sizes[0]
LIMITS = StepLimits(max_tokens=1000, max_seqs=10, max_blocks=100, block_tokens=BLOCK)


LONG = [(8191, 1), (32_748, 20)]
"""Chunks of contexts of 8k and 32k."""
LONG_LIMITS = LIMITS._replace(max_blocks=-(-32_768 // BLOCK))


def paged(group: int, kv_heads: int, dim: int) -> PagedCpuAttention:
    return PagedCpuAttention(kernels(), AttentionSpec(group * kv_heads, kv_heads, dim))


def step_of(chunks: list[tuple[int, int]]) -> AttentionInput:
    """(start, count) of each sequence; blocks in random order."""
    num_blocks = [-(-(start + count) // BLOCK) for start, count in chunks]
    block_tables = np.zeros((len(chunks), max(num_blocks)), dtype=np.int64)
    order = iter(np.random.default_rng(0).permutation(sum(num_blocks)))
    for slot, count in enumerate(num_blocks):
        block_tables[slot, :count] = [next(order) for _ in range(count)]
    slots = np.arange(len(chunks))
    starts, counts = (np.array(values) for values in zip(*chunks, strict=True))
    positions = np.concatenate([np.arange(start, start + count) for start, count in chunks])
    slot_mapping = block_tables[np.repeat(slots, counts), positions // BLOCK] * BLOCK + positions % BLOCK
    return AttentionInput(slots, starts, counts, block_tables, slot_mapping)


@pytest.mark.parametrize("group", [1, 3, 7])
@pytest.mark.parametrize(
    "chunks", [[(0, 1)], [(300, 1), (16, 1), (15, 1)], [(0, 100)], [(40, 1), (0, 17), (33, 90)]], ids=str
)
@pytest.mark.parametrize("window", [None, 1, 15, 64, 90])
def test_results_and_stored_kv_equal_the_reference(
    chunks: list[tuple[int, int]], group: int, window: int | None
) -> None:
    step = step_of(chunks)
    qkv = random(len(step.slot_mapping), (group + 2) * 2, 32)
    backend = paged(group, 2, 32)
    reference = SdpaAttention(AttentionSpec(group * 2, 2, 32, (Mask(window),)), torch.float32, torch.device("cpu"))
    cache = random(*backend.kv_shape(int(step.block_tables.max()) + 1, BLOCK), seed=1)
    results, caches = [], []
    for attention, layer_kv in ((backend, cache), (reference, backend.token_major(cache))):
        heads = qkv.clone()
        kv = heads[:, 2 * group :].unflatten(1, (2, 2))
        metadata = attention.builder(LIMITS).build(step)
        results.append(attention.forward(heads[:, : 2 * group], kv, layer_kv, metadata, Mask(window)))  # type: ignore[arg-type]
        caches.append(layer_kv)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(backend.token_major(caches[0]), caches[1])


@pytest.mark.parametrize("window", [None, 5_000])
def test_long_contexts_equal_the_reference(window: int | None) -> None:
    step, backend = step_of(LONG), paged(3, 2, 64)
    reference = SdpaAttention(AttentionSpec(6, 2, 64, (Mask(window),)), torch.float32, torch.device("cpu"))
    cache = random(*backend.kv_shape(int(step.block_tables.max()) + 1, BLOCK), seed=1)
    qkv, results = random(len(step.slot_mapping), 10, 64), []
    for attention, layer_kv in ((backend, cache), (reference, backend.token_major(cache))):
        heads = qkv.clone()
        kv, metadata = heads[:, 6:].unflatten(1, (2, 2)), attention.builder(LONG_LIMITS).build(step)
        results.append(attention.forward(heads[:, :6], kv, layer_kv, metadata, Mask(window)))  # type: ignore[arg-type]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [16, 48, 64])
@pytest.mark.parametrize("length", [63, 64, 65, 150])
@pytest.mark.parametrize("window", [None, 20, 70])
def test_a_token_has_the_same_bits_in_a_prompt_in_a_chunk_alone_and_in_a_batch(
    length: int, dim: int, window: int | None
) -> None:
    group, cut = 3, length - 30
    attention = paged(group, 2, dim)
    qkv = random(length, (group + 2) * 2, dim)
    whole = step_of([(0, length)])
    cache = torch.zeros(attention.kv_shape(int(whole.block_tables.max()) + 1, BLOCK))
    builder = attention.builder(LIMITS)

    def attend(chunks: list[tuple[int, int]]) -> torch.Tensor:
        tokens = [token for start, count in chunks for token in range(start, start + count)]
        step = replace(
            step_of(chunks),
            block_tables=np.repeat(whole.block_tables, len(chunks), axis=0),
            slot_mapping=whole.slot_mapping[tokens],
        )
        heads = qkv[tokens]
        kv = heads[:, 2 * group :].unflatten(1, (2, 2))
        return attention.forward(heads[:, : 2 * group], kv, cache, builder.build(step), Mask(window))

    expected = attend([(0, length)])
    assert torch.equal(attend([(cut, 30)]), expected[cut:])
    assert torch.equal(attend([(length - 1, 1)])[0], expected[-1])
    for result in attend([(length - 1, 1)] * 4):
        assert torch.equal(result, expected[-1])


IMAGES = ((3, 40), (41, 42), (60, 77))
LENGTH = 80


@pytest.mark.parametrize("largest", [1.0, 30.0])
def test_long_contexts_are_as_exact_as_float32_allows(largest: float) -> None:
    """Scores up to about four times ``largest``, and rows whose sums are rescaled and merged from two segments."""
    heads, found = a_long_prompt(largest)
    exact, of_torch = (attend_causally(heads.to(dtype)) for dtype in (torch.float64, torch.float32))
    assert (found - exact).abs().max() <= 2 * (of_torch - exact).abs().max()


@pytest.mark.parametrize("largest", [1e7, 1e10, 1e20])
def test_huge_scores_leave_one_key(largest: float) -> None:
    heads, found = a_long_prompt(largest)
    torch.testing.assert_close(found, attend_causally(heads), rtol=1e-6, atol=1e-6)


def a_long_prompt(largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries, keys and values, and what the kernel finds. Scores are up to about four times ``largest``."""
    step, backend = step_of([(0, 1500)]), paged(3, 1, 64)
    heads = random(1500, 5, 64) * torch.tensor([largest] * 3 + [1.0, 1.0])[:, None]
    cache = torch.zeros(backend.kv_shape(len(step.block_tables[0]), BLOCK))
    metadata = backend.builder(LIMITS._replace(max_tokens=1500)).build(step)
    chosen = heads.clone()
    found = backend.forward(chosen[:, :3], chosen[:, 3:].unflatten(1, (2, 1)), cache, metadata)
    return heads, found


def attend_causally(heads: torch.Tensor) -> torch.Tensor:
    """[T, 3, dim] of [T, 3 + 1 + 1, dim]."""
    q, k, v = heads.transpose(0, 1).split([3, 1, 1])
    scores = (q @ k.transpose(1, 2) * heads.shape[-1] ** -0.5).masked_fill(
        ~torch.ones(len(heads), len(heads), dtype=torch.bool).tril(), -torch.inf
    )
    return (scores.softmax(-1) @ v).transpose(0, 1)


def image_ends(positions: np.ndarray) -> np.ndarray:
    ends = positions + 1
    for start, end in IMAGES:
        ends[(positions >= start) & (positions < end)] = end
    return ends


def attend_densely(qkv: torch.Tensor, group: int, mask: Mask) -> torch.Tensor:
    """[T, heads, dim] of one sequence, with the mask as a matrix."""
    own, ends = torch.arange(LENGTH), torch.from_numpy(image_ends(np.arange(LENGTH)))
    visible = own < (ends if mask.whole_images else own + 1)[:, None]
    if mask.window:
        visible &= own > own[:, None] - mask.window
    q, k, v = qkv.transpose(0, 1).split([2 * group, 2, 2])
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * qkv.shape[-1] ** -0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return (weights @ v.repeat_interleave(group, 0)).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 1, 8, 30, 64])
@pytest.mark.parametrize("group", [1, 7])
def test_rows_of_an_image_attend_to_all_of_it_within_the_window(window: int | None, group: int) -> None:
    """Whole, and behind prefixes that end at, inside and before images. Windows are smaller and larger than images."""
    masks = (Mask(window, whole_images=True), Mask(window))
    spec = AttentionSpec(2 * group, 2, 32, masks)
    qkv, whole = random(LENGTH, (group + 2) * 2, 32), step_of([(0, LENGTH)])
    for backend in (PagedCpuAttention(kernels(), spec), SdpaAttention(spec, torch.float32, torch.device("cpu"))):
        builder = backend.builder(LIMITS)
        caches = [torch.zeros(backend.kv_shape(int(whole.block_tables.max()) + 1, BLOCK)) for _ in masks]
        for start in (0, 2, 3, 20, 39, 60, 76, LENGTH - 1):
            heads = qkv[start:].clone()
            step = replace(
                step_of([(start, LENGTH - start)]),
                block_tables=whole.block_tables,
                slot_mapping=whole.slot_mapping[start:],
                image_ends=image_ends(np.arange(start, LENGTH)),
            )
            metadata: Any = builder.build(step)
            for mask, cache in zip(masks, caches, strict=True):
                kv = heads[:, 2 * group :].unflatten(1, (2, 2))
                found = backend.forward(heads[:, : 2 * group], kv, cache, metadata, mask)
                expected = attend_densely(qkv, group, mask)[start:]
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_attention_never_reads_beyond_its_own_context() -> None:
    """Values of other sequences in the last block, NaN included, change nothing."""
    step = step_of([(20, 1), (5, 20)])
    qkv, attention = random(21, 4, 32), paged(2, 1, 32)
    clean = random(*attention.kv_shape(4, BLOCK), seed=1)
    spoiled = clean.clone()
    for slot, end in enumerate((5, 9)):
        keys, values = spoiled[step.block_tables[slot, 1], 0]
        keys.view(32, BLOCK)[:, end:] = values.view(BLOCK, 32)[end:] = torch.nan
    metadata = attention.builder(LIMITS).build(step)
    first, second = (
        attention.forward(qkv[:, :2], qkv[:, 2:].unflatten(1, (2, 1)), cache, metadata) for cache in (clean, spoiled)
    )
    assert torch.equal(first, second)


def test_a_step_beyond_the_limits_is_refused() -> None:
    builder = paged(1, 1, 16).builder(LIMITS._replace(max_tokens=2))
    with pytest.raises(ValueError, match="3 tiles"):
        builder.build(step_of([(5, 1)] * 3))


@pytest.mark.parametrize(
    ("spec", "backend"),
    [
        (AttentionSpec(8, 4, 32), PagedCpuAttention),
        (AttentionSpec(8, 4, 24), SdpaAttention),
        (AttentionSpec(98, 2, 32), SdpaAttention),
    ],
)
def test_heads_that_the_kernel_cannot_compute_get_the_reference(spec: AttentionSpec, backend: type) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert type(CpuPlatform(dtype).attention(spec, dtype)) is backend
    assert type(CpuPlatform(torch.bfloat16, torch.bfloat16).attention(spec, torch.bfloat16)) is SdpaAttention
    assert type(CpuPlatform(torch.float16).attention(spec, torch.float16)) is SdpaAttention
