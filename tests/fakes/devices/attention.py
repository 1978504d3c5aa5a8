"""Random steps for attention backends, with what they must compute in float64.

Everything that a backend must not read is NaN, unless a test says otherwise: unused blocks, the rest of last blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, Mask, StepLimits

TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}
"""Of numbers of about 1. Triton's interpreter cuts bfloat16 off instead of rounding it."""


@dataclass(frozen=True)
class Problem:
    """One layer's step. Chunks of one token come first; (-1, 1) is a row of a captured graph that is not used."""

    chunks: tuple[tuple[int, int], ...]
    """(start, count)."""
    group: int = 1
    kv_heads: int = 1
    dim: int = 16
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    """None: as ``dtype``. All numbers are such that it can hold them, because Triton's interpreter rounds others
    wrongly to fp8."""
    masks: tuple[Mask, ...] = (Mask(),)
    images: tuple[tuple[int, int], ...] = ()
    """(first, end) of positions, the same in all sequences."""
    block_tokens: int = 16
    num_blocks: int | None = None
    """Of the cache; None: as many as are used."""
    soft_cap: float | None = None
    length: int | None = None
    """That numbers of a sequence are drawn for, which all depend on it; None: to the end of its chunk."""

    @property
    def spec(self) -> AttentionSpec:
        heads = self.group * self.kv_heads
        return AttentionSpec(heads, self.kv_heads, self.dim, self.masks, soft_cap=self.soft_cap)

    @property
    def limits(self) -> StepLimits:
        return StepLimits(256, 16, 64, self.block_tokens)


class Step:
    """A problem with numbers. Those of a sequence depend on its place in the step alone, not on the other chunks."""

    def __init__(self, problem: Problem, device: str = "cpu", *, stale: float = torch.nan) -> None:
        """``stale``: what stands in the cache where nothing was stored."""
        self.problem, self._device, self._stale = problem, torch.device(device), stale
        ends = [start + count for start, count in problem.chunks]
        heads = (problem.group + 2) * problem.kv_heads
        self._sequences = [
            torch.randn(problem.length or end, heads, problem.dim, generator=torch.Generator().manual_seed(slot))[:end]
            .to(problem.kv_dtype or problem.dtype)
            .to(problem.dtype)
            for slot, end in enumerate(ends)
        ]
        self.input = self._input(ends)

    def run(self, backend: Any, mask: Mask | None = None, metadata: Any = None) -> torch.Tensor:
        """[T, heads, dim] as the backend computes it. The K and V of the step are in the cache afterwards."""
        queries, kv, cache = self.tensors(backend)
        metadata = metadata or backend.builder(self.problem.limits).build(self.input)
        out = backend.forward(queries, kv, cache, metadata, mask or self.problem.masks[0])
        stored = cache.flatten(0, 1)[torch.from_numpy(self.input.slot_mapping).to(self._device)]
        assert torch.equal(stored.float(), kv.float())
        return out.cpu()

    def tensors(self, backend: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [T, heads, dim], K and V [T, 2, heads, dim] (views into one), and the cache before the step."""
        problem = self.problem
        unused = torch.zeros(1, *self._sequences[0].shape[1:], dtype=problem.dtype)
        rows = [
            made[start:] if len(made) else unused
            for made, (start, _) in zip(self._sequences, problem.chunks, strict=True)
        ]
        heads = torch.cat(rows).to(self._device)
        queries = heads[:, : problem.group * problem.kv_heads]
        kv = heads[:, problem.group * problem.kv_heads :].unflatten(1, (2, problem.kv_heads))
        return queries, kv, self._cache(backend).to(self._device)

    def exact(self, mask: Mask | None = None) -> torch.Tensor:
        """What ``run`` must return, from the same numbers, in float64."""
        outs = [
            self._attend(made.double(), start, mask or self.problem.masks[0])
            for made, (start, _) in zip(self._sequences, self.problem.chunks, strict=True)
        ]
        return torch.cat(outs)

    def error(self, out: torch.Tensor, mask: Mask | None = None) -> float:
        """The largest difference between ``out`` and ``exact``."""
        return float((out.double() - self.exact(mask)).abs().max())

    def _input(self, ends: list[int]) -> AttentionInput:
        problem, size = self.problem, self.problem.block_tokens
        num_blocks = [-(-end // size) for end in ends]
        tables = np.zeros((len(ends), max(num_blocks)), dtype=np.int64)
        order = iter((np.random.default_rng(0).permutation(sum(num_blocks)) + 1).tolist())
        for slot, count in enumerate(num_blocks):
            tables[slot, :count] = [next(order) for _ in range(count)]
        starts, counts = (np.array(values) for values in zip(*problem.chunks, strict=True))
        positions = np.concatenate([np.arange(start, start + count) for start, count in problem.chunks])
        slots = np.arange(len(ends))
        mapping = tables[np.repeat(slots, counts), np.maximum(positions, 0) // size] * size + positions % size
        mapping[positions < 0] = 0  # block 0, which belongs to nobody
        image_ends = self._image_ends(positions) if problem.images else None
        return AttentionInput(slots, starts, counts, tables, mapping, image_ends)

    def _image_ends(self, positions: np.ndarray) -> np.ndarray:
        ends: np.ndarray = positions + 1
        for first, end in self.problem.images:
            ends[(positions >= first) & (positions < end)] = end
        return ends

    def _cache(self, backend: Any) -> torch.Tensor:
        """With the K and V of all tokens before the step."""
        problem, step = self.problem, self.input
        shape = backend.kv_shape(problem.num_blocks or int(step.block_tables.max()) + 1, problem.block_tokens)
        cache = torch.full(shape, self._stale).to(problem.kv_dtype or problem.dtype)
        tokens = cache.view(-1, 2, problem.kv_heads, problem.dim)
        for slot, (made, (start, _)) in enumerate(zip(self._sequences, problem.chunks, strict=True)):
            before = np.arange(max(start, 0))
            places = step.block_tables[slot, before // problem.block_tokens] * problem.block_tokens
            kv = made[: len(before), problem.group * problem.kv_heads :].unflatten(1, (2, problem.kv_heads))
            tokens[torch.from_numpy(places + before % problem.block_tokens)] = kv.to(cache.dtype)
        return cache

    def _attend(self, heads: torch.Tensor, start: int, mask: Mask) -> torch.Tensor:
        problem = self.problem
        if not len(heads):
            return torch.zeros(1, problem.group * problem.kv_heads, problem.dim, dtype=torch.float64)
        own = torch.arange(len(heads))
        ends = torch.from_numpy(self._image_ends(own.numpy())) if mask.whole_images else own + 1
        visible = own < ends[:, None]
        if mask.window:
            visible &= own > own[:, None] - mask.window
        q, kv = heads[:, : problem.group * problem.kv_heads], heads[:, problem.group * problem.kv_heads :]
        k, v = (part.transpose(0, 1).repeat_interleave(problem.group, 0) for part in kv.chunk(2, 1))
        scores = q.transpose(0, 1) @ k.transpose(1, 2) * problem.dim**-0.5
        if problem.soft_cap is not None:
            scores = problem.soft_cap * (scores / problem.soft_cap).tanh()
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return (weights @ v).transpose(0, 1)[start:]


def alone(problem: Problem, index: int) -> Problem:
    """Of one chunk of it. ``Step`` gives it the numbers of the first chunk."""
    return replace(problem, chunks=(problem.chunks[index],))
