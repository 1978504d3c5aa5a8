"""Attention over a KV cache in bfloat16: torch's numbers, and on every instruction set the same bits in any batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, Mask
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler, random
from tests.unit.model_backend.platforms.cpu.test_attention import (
    BLOCK,
    LIMITS,
    LONG,
    LONG_LIMITS,
    attend_densely,
    image_ends,
    step_of,
)
from tests.unit.model_backend.platforms.cpu.test_levels import built

pytestmark = needs_compiler
SHORT = torch.bfloat16
KV_HEADS = 2


both_products = pytest.mark.parametrize("rounds", [False, True], ids=["widened", "rounded"])


def backends(group: int, dim: int, *masks: Mask, rounds: bool = False) -> list[PagedCpuAttention]:
    """Of every level of this CPU."""
    spec = AttentionSpec(group * KV_HEADS, KV_HEADS, dim, masks or (Mask(),))
    return [PagedCpuAttention(level, spec, SHORT, rounds=rounds) for level in built().values()]


def new_cache(backend: PagedCpuAttention, step: AttentionInput, fill: float = 0.0) -> torch.Tensor:
    return torch.full(backend.kv_shape(int(step.block_tables.max()) + 1, BLOCK), fill, dtype=SHORT)


def attend(
    backend: PagedCpuAttention, qkv: torch.Tensor, cache: torch.Tensor, step: AttentionInput, mask: Mask
) -> torch.Tensor:
    q, kv = qkv[:, : -2 * KV_HEADS], qkv[:, -2 * KV_HEADS :].unflatten(1, (2, KV_HEADS))
    return backend.forward(q, kv, cache, backend.builder(LIMITS).build(step), mask)


def chunk_of(whole: AttentionInput, chunks: list[tuple[int, int]]) -> AttentionInput:
    """(start, count) of each sequence, all with the blocks of the one in ``whole``."""
    tokens = [token for start, count in chunks for token in range(start, start + count)]
    tables = np.repeat(whole.block_tables, len(chunks), axis=0)
    return replace(step_of(chunks), block_tables=tables, slot_mapping=whole.slot_mapping[tokens])


@pytest.mark.parametrize(("group", "dim"), [(1, 16), (3, 64), (7, 80), (16, 32), (4, 128)])
@pytest.mark.parametrize("window", [None, 1, 15, 64])
def test_results_and_stored_numbers_equal_the_reference(group: int, dim: int, window: int | None) -> None:
    """Prompts, then chunks behind them and decoding; the cache holds NaN where nothing was written."""
    lengths, mask = (150, 40, 17), Mask(window)
    parts = [[(0, 100), (0, 39), (0, 1)], [(100, 50), (39, 1), (1, 16)]]
    whole = step_of([(0, length) for length in lengths])
    rows = np.cumsum((0, *lengths))
    qkv = random(int(rows[-1]), (group + 2) * KV_HEADS, dim)
    reference = SdpaAttention(
        AttentionSpec(group * KV_HEADS, KV_HEADS, dim, (mask,)), torch.float32, torch.device("cpu")
    )
    found: list[list[torch.Tensor]] = []
    for backend in backends(group, dim, mask):
        cache = new_cache(backend, whole, torch.nan)
        expected_cache = torch.zeros(reference.kv_shape(len(cache), BLOCK), dtype=SHORT)
        found.append([])
        for chunks in parts:
            # Chunks of one row come first.
            order = sorted(range(len(chunks)), key=lambda slot: (chunks[slot][1] > 1, slot))
            tokens = [rows[slot] + i for slot in order for i in range(chunks[slot][0], sum(chunks[slot]))]
            starts, counts = (np.array([chunks[slot][i] for slot in order]) for i in range(2))
            step = AttentionInput(
                np.array(order), starts, counts, whole.block_tables, whole.slot_mapping[np.array(tokens)]
            )
            heads = qkv[tokens]
            found[-1].append(attend(backend, heads, cache, step, mask))
            q, kv = heads[:, : -2 * KV_HEADS], heads[:, -2 * KV_HEADS :].unflatten(1, (2, KV_HEADS))
            metadata = reference.builder(LIMITS).build(step)
            expected = reference.forward(q, kv, expected_cache, metadata, mask)
            torch.testing.assert_close(found[-1][-1], expected, rtol=1e-4, atol=1e-5)
        written = whole.slot_mapping
        stored = backend.token_major(cache).flatten(0, 1)[written]
        assert torch.equal(stored, expected_cache.flatten(0, 1)[written])
    for level in found[1:]:
        assert all(map(torch.equal, level, found[0]))


@pytest.mark.parametrize("window", [None, 5_000])
def test_long_contexts_equal_the_reference(window: int | None) -> None:
    step, mask = step_of(LONG), Mask(window)
    qkv = random(len(step.slot_mapping), 5 * KV_HEADS, 64)
    q, kv = qkv[:, : 3 * KV_HEADS], qkv[:, 3 * KV_HEADS :].unflatten(1, (2, KV_HEADS))
    spec = AttentionSpec(3 * KV_HEADS, KV_HEADS, 64, (mask,))
    reference = SdpaAttention(spec, torch.float32, torch.device("cpu"))
    found: list[torch.Tensor] = []
    for backend in backends(3, 64, mask):
        cache = random(*backend.kv_shape(int(step.block_tables.max()) + 1, BLOCK), seed=1).to(SHORT)
        expected_cache = backend.token_major(cache).clone()
        found.append(backend.forward(q, kv, cache, backend.builder(LONG_LIMITS).build(step), mask))
        expected = reference.forward(q, kv, expected_cache, reference.builder(LONG_LIMITS).build(step), mask)
        torch.testing.assert_close(found[-1], expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(found[-1], found[0])


@both_products
@pytest.mark.parametrize("dim", [16, 48, 64])
@pytest.mark.parametrize("length", [63, 64, 65, 150])
@pytest.mark.parametrize("window", [None, 20, 70])
def test_a_token_has_the_same_bits_in_a_prompt_in_chunks_alone_and_in_a_batch(
    length: int, dim: int, window: int | None, rounds: bool
) -> None:
    group, mask, whole = 3, Mask(window), step_of([(0, length)])
    qkv = random(length, (group + 2) * KV_HEADS, dim)
    for backend in backends(group, dim, mask, rounds=rounds):
        cache = new_cache(backend, whole)
        expected = attend(backend, qkv, cache, whole, mask)
        for start in (1, length - 31, length - 1):
            behind = chunk_of(whole, [(start, length - start)])
            assert torch.equal(attend(backend, qkv[start:], cache, behind, mask), expected[start:])
        alike = chunk_of(whole, [(length - 1, 1)] * 4)
        for row in attend(backend, qkv[[length - 1] * 4], cache, alike, mask):
            assert torch.equal(row, expected[-1])


@pytest.mark.parametrize("window", [None, 15, 64])
@pytest.mark.parametrize(("group", "dim"), [(3, 64), (7, 80)])
def test_queries_and_weights_of_the_softmax_are_rounded_too(group: int, dim: int, window: int | None) -> None:
    """On every level the same bits."""
    length, mask = 150, Mask(window)
    step, qkv = step_of([(0, length)]), random(length, (group + 2) * KV_HEADS, dim)
    q, kv = qkv.split([group * KV_HEADS, 2 * KV_HEADS], dim=1)
    k, v = kv.bfloat16().float().transpose(0, 1).repeat_interleave(group, 0).chunk(2)
    scores = (q / dim**0.5).bfloat16().float().transpose(0, 1) @ k.mT
    distance = torch.arange(length)[:, None] - torch.arange(length)
    scores[:, (distance < 0) | (distance >= (window or length))] = -torch.inf
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    # A later tile of keys may raise the largest score; the weights of earlier ones are rounded before that.
    expected = ((weights.bfloat16().float() @ v) / weights.sum(-1, keepdim=True)).transpose(0, 1)
    found, exact = (
        [attend(backend, qkv, new_cache(backend, step), step, mask) for backend in backends(group, dim, mask, rounds=r)]
        for r in (True, False)
    )
    assert all(torch.equal(each, found[0]) for each in found)
    error, of_exact = (torch.dist(each, expected) / expected.norm() for each in (found[0], exact[0]))
    assert error < 0.0009 < of_exact


@both_products
@pytest.mark.parametrize("length", [1, 20, 35])
def test_nothing_behind_a_sequence_is_read(length: int, rounds: bool) -> None:
    """A cache that holds NaN behind it, also in the odd half of a pair of tokens, gives the bits of one with zeros."""
    step = step_of([(0, length)])
    qkv = random(length, 4 * KV_HEADS, 32)
    for backend in backends(2, 32, rounds=rounds):
        zeros, spoiled = (
            attend(backend, qkv, new_cache(backend, step, fill), step, Mask()) for fill in (0.0, torch.nan)
        )
        assert torch.equal(zeros, spoiled)


def test_rows_of_an_image_attend_to_all_of_it() -> None:
    length, mask = 80, Mask(30, whole_images=True)
    step = replace(step_of([(0, length)]), image_ends=image_ends(np.arange(length)))
    qkv = random(length, 4 * KV_HEADS, 32)
    qkv[:, -2 * KV_HEADS :] = qkv[:, -2 * KV_HEADS :].bfloat16()
    for backend in backends(2, 32, mask):
        found = attend(backend, qkv, new_cache(backend, step), step, mask)
        torch.testing.assert_close(found, attend_densely(qkv, 2, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("copied", [1, 2, 15])
def test_a_sequence_goes_on_from_copied_tokens(copied: int) -> None:
    """The first tokens of a block are copied to another, whose sequence then gives the bits of the first."""
    length = BLOCK + copied
    first = step_of([(0, length + 1)])
    second = replace(first, block_tables=first.block_tables.copy())
    second.block_tables[0, 1] = other = int(first.block_tables.max()) + 1
    backend = PagedCpuAttention(kernels(), AttentionSpec(4, KV_HEADS, 32), SHORT)
    qkv = random(length + 1, 4 * KV_HEADS, 32)
    caches = torch.full((2, *backend.kv_shape(other + 1, BLOCK)), torch.nan, dtype=SHORT)
    expected = [attend(backend, qkv, cache, first, Mask())[-1] for cache in caches]
    source = int(first.block_tables[0, 1])
    backend.copy_tokens(caches, [BlockCopy(source=source, target=other, num_tokens=copied)])
    for cache, row in zip(caches, expected, strict=True):
        cache[source] = torch.nan
        slot = np.array([other * BLOCK + copied])
        going_on = replace(step_of([(length, 1)]), block_tables=second.block_tables, slot_mapping=slot)
        assert torch.equal(attend(backend, qkv[-1:], cache, going_on, Mask())[0], row)


def test_all_sources_are_copied_before_the_first_target_is_written() -> None:
    backend = PagedCpuAttention(kernels(), AttentionSpec(2, KV_HEADS, 16), SHORT)
    cache = random(3, *backend.kv_shape(3, BLOCK)).to(SHORT)
    before = cache.clone()
    backend.copy_tokens(
        cache, [BlockCopy(source=0, target=1, num_tokens=3), BlockCopy(source=1, target=0, num_tokens=3)]
    )
    assert torch.equal(backend.token_major(cache[1])[:2, :3], backend.token_major(before[1])[[1, 0], :3])


def test_the_reference_rounds_keys_and_values_of_its_own_step_too() -> None:
    """A prompt at once gives what it gives in two chunks, the second of which reads the first from the cache."""
    length, whole = 40, step_of([(0, 40)])
    qkv = random(length, 4 * KV_HEADS, 32)
    qkv[:, -2 * KV_HEADS :] = qkv[:, -2 * KV_HEADS :].bfloat16()
    reference = SdpaAttention(AttentionSpec(4, KV_HEADS, 32), torch.float32, torch.device("cpu"))
    results = []
    for noise in (0.0, 1e-4):  # less than half of the last bit
        heads = qkv * (1 + noise)
        heads[:, : -2 * KV_HEADS] = qkv[:, : -2 * KV_HEADS]
        cache = torch.zeros(reference.kv_shape(3, BLOCK), dtype=SHORT)
        q, kv = heads[:, : -2 * KV_HEADS], heads[:, -2 * KV_HEADS :].unflatten(1, (2, KV_HEADS))
        results.append(reference.forward(q, kv, cache, reference.builder(LIMITS).build(whole)))
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], attend_densely_of(qkv))


def attend_densely_of(qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = qkv.transpose(0, 1).split([2 * KV_HEADS, KV_HEADS, KV_HEADS])
    k, v = (part.repeat_interleave(2, 0) for part in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)
