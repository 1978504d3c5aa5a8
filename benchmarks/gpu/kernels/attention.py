"""Cases of paged attention: decoding, prompts in chunks behind a prefix, windows, pictures, head counts and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.gpu.kernels.case import Bench, Case
from mmserve.model_backend.attention.interface import (
    CAUSAL,
    UNTURNED,
    AttentionBackend,
    AttentionInput,
    AttentionSpec,
    HeadTurn,
    Mask,
    RopeRows,
    StepLimits,
)
from mmserve.model_backend.layers.head_turn import turn_heads_
from mmserve.model_backend.platforms.interface import Platform

_UNWRITTEN = 50.0
"""In the cache where nothing was stored: finite, because torch multiplies masked values with zero."""


class Chunk(NamedTuple):
    """Rows of one sequence: ``count`` tokens from position ``start`` on."""

    start: int
    count: int = 1


class Layout:
    """Where the sequences' tokens are in a cache, and the inputs of the step and of what came before it."""

    def __init__(self, chunks: Sequence[Chunk], block_tokens: int, seed: int) -> None:
        self.chunks, self.block_tokens = chunks, block_tokens
        blocks_of = [-(-(chunk.start + chunk.count) // block_tokens) for chunk in chunks]
        self.num_blocks = sum(blocks_of) + 3
        order = np.random.default_rng(seed).permutation(self.num_blocks)
        self.tables = np.zeros((len(chunks), max(blocks_of)), dtype=np.int64)
        for slot, (end, count) in enumerate(zip(np.cumsum(blocks_of), blocks_of, strict=True)):
            self.tables[slot, :count] = order[end - count : end]

    def before(self) -> Iterator[tuple[int, AttentionInput]]:
        """(slot, the step that stores its tokens before ``start``), of each sequence that has some."""
        for slot, chunk in enumerate(self.chunks):
            if chunk.start:
                yield slot, self._input([slot], [Chunk(0, chunk.start)], None)

    def step(self, image_ends: Sequence[int] | None) -> AttentionInput:
        """The step itself. ``image_ends``: as in ``AttentionInput``, of its rows."""
        return self._input(list(range(len(self.chunks))), list(self.chunks), image_ends)

    def _input(self, slots: list[int], chunks: list[Chunk], image_ends: Sequence[int] | None) -> AttentionInput:
        places = []
        for slot, chunk in zip(slots, chunks, strict=True):
            positions = np.arange(chunk.start, chunk.start + chunk.count)
            blocks = self.tables[slot, positions // self.block_tokens]
            places.append(blocks * self.block_tokens + positions % self.block_tokens)
        return AttentionInput(
            slots=np.array(slots),
            starts=np.array([chunk.start for chunk in chunks]),
            counts=np.array([chunk.count for chunk in chunks]),
            block_tables=self.tables,
            slot_mapping=np.concatenate(places),
            image_ends=None if image_ends is None else np.array(image_ends),
        )


class Attended(NamedTuple):
    """Inputs of one case. ``numbers``: of each sequence [tokens, heads + 2 kv_heads, dim]."""

    spec: AttentionSpec
    chunks: Sequence[Chunk]
    numbers: Sequence[torch.Tensor]
    mask: Mask = CAUSAL
    image_ends: Sequence[int] | None = None
    kv_dtype: torch.dtype | None = None
    """Of the cache; None: the platform's."""
    turn: HeadTurn = UNTURNED
    """Of the step itself, not of what was stored before it; its tensors are on the host."""

    def on(self, platform: Platform) -> torch.Tensor:
        """By the platform's backend, through a cache in its dtype."""
        backend = platform.attention(self.spec, self.kv_dtype or platform.dtype)
        with torch.inference_mode():
            return self.by(backend, platform)

    def by(self, backend: AttentionBackend[Any], platform: Platform) -> torch.Tensor:
        """What was before the step is stored by steps of its own."""
        block_tokens = backend.block_sizes[0]
        layout = Layout(self.chunks, block_tokens, seed=len(self.chunks))
        shape = backend.kv_shape(layout.num_blocks, block_tokens)
        cache = torch.full(shape, _UNWRITTEN, device=platform.device).to(self.kv_dtype or platform.dtype)
        most_tokens = sum(chunk.start + chunk.count for chunk in self.chunks)
        builder = backend.builder(StepLimits(most_tokens, len(self.chunks), layout.tables.shape[1], block_tokens))
        for slot, step in layout.before():
            # A mask of pictures changes what is attended to, and not what is stored.
            self._forward(
                backend,
                builder.build(step),
                self._rows(slot, Chunk(0, self.chunks[slot].start)),
                cache,
                platform,
                UNTURNED,
            )
        rows = torch.cat([self._rows(slot, chunk) for slot, chunk in enumerate(self.chunks)])
        return self._forward(backend, builder.build(layout.step(self.image_ends)), rows, cache, platform, self.turn)

    def _rows(self, slot: int, chunk: Chunk) -> torch.Tensor:
        return self.numbers[slot][chunk.start : chunk.start + chunk.count]

    def _forward(
        self,
        backend: AttentionBackend[Any],
        metadata: Any,
        rows: torch.Tensor,
        cache: torch.Tensor,
        platform: Platform,
        turn: HeadTurn,
    ) -> torch.Tensor:
        heads = rows.to(platform.device, platform.dtype, copy=True)
        if turn.tensors != UNTURNED.tensors:
            turn = turn._replace(
                **{
                    name: value.to(platform.device, platform.dtype)
                    for name, value in turn._asdict().items()
                    if isinstance(value, torch.Tensor)
                }
            )
            if not backend.turns_heads:
                turn_heads_(platform.ops(), heads, self.spec.num_heads, self.spec.num_kv_heads, turn)
                turn = UNTURNED
        kv = heads[:, self.spec.num_heads :].unflatten(1, (2, self.spec.num_kv_heads))
        return backend.forward(heads[:, : self.spec.num_heads], kv, cache, metadata, self.mask, turn)


_LENGTHS = (300, 65, 64, 63, 17, 16, 15, 1)
_DECODES = tuple(Chunk(length - 1) for length in _LENGTHS)
_CHUNKS = (Chunk(0, 70), Chunk(17, 40), Chunk(128, 5), Chunk(100, 64))
_HEADS = ((32, 8, 128), (8, 8, 64), (14, 2, 64), (8, 2, 256), (9, 3, 96), (4, 4, 80))
"""(query heads, KV heads, dim)."""
_WINDOW, _CAP = 21, 5.0


def paged_attention(bench: Bench) -> Iterator[Case]:
    sets = {"decoding": _DECODES, "prompts": _CHUNKS, "both": (Chunk(200), Chunk(33), Chunk(40, 50), Chunk(0, 9))}
    for heads in _HEADS[1:3] if bench.small else _HEADS:
        for name, chunks in sets.items():
            yield _case(bench, f"{name}, {_said(heads)}", heads, chunks, CAUSAL)
    heads = _HEADS[1] if bench.small else _HEADS[0]
    for name, chunks in sets.items():
        yield _case(bench, f"{name}, window of {_WINDOW}, {_said(heads)}", heads, chunks, Mask(window=_WINDOW))
        yield _case(bench, f"{name}, scores capped, {_said(heads)}", heads, chunks, CAUSAL, soft_cap=_CAP)
        if bench.dtype != torch.float32:
            yield _case(
                bench, f"{name}, fp8 cache, {_said(heads)}", heads, chunks, CAUSAL, kv_dtype=torch.float8_e4m3fn
            )
        yield from _turned(bench, f"{name}, {_said(heads)}", heads, chunks)
    pictures = (Chunk(130), Chunk(20, 60))
    ends = [131, *range(21, 81)]
    ends[1 + 10 : 1 + 40] = [60] * 30  # positions 30 to 59 are a picture
    mask = Mask(whole_images=True)
    yield _case(bench, f"a whole picture, {_said(heads)}", heads, pictures, mask, ends)


def _turned(bench: Bench, name: str, heads: tuple[int, int, int], chunks: Sequence[Chunk]) -> Iterator[Case]:
    """Norms and rotation in the launch that stores K and V: whole heads, and a part of them by adjacent pairs."""
    rows, dim = sum(chunk.count for chunk in chunks), heads[2]
    for pairs, norms, adjacent in ((dim // 2, False, False), (dim // 4, True, True)):
        angles = torch.rand(1, rows, pairs, generator=bench.generator) * 1000
        weights = [bench.random(dim) for _ in range(2)] if norms else [None, None]
        cos, sin = angles.cos().to(bench.dtype), angles.sin().to(bench.dtype)
        turn = HeadTurn(*weights, 1e-6, cos, sin, RopeRows(0, 0), adjacent)
        said = "norms, a half of adjacent pairs" if norms else "whole heads"
        yield _case(bench, f"{name}, turned: {said}", heads, chunks, CAUSAL, turn=turn)


def _case(
    bench: Bench,
    name: str,
    heads: tuple[int, int, int],
    chunks: Sequence[Chunk],
    mask: Mask,
    image_ends: Sequence[int] | None = None,
    soft_cap: float | None = None,
    kv_dtype: torch.dtype | None = None,
    turn: HeadTurn = UNTURNED,
) -> Case:
    q, kv, dim = heads
    spec = AttentionSpec(q, kv, dim, masks=(mask,), soft_cap=soft_cap)
    numbers = [bench.random(chunk.start + chunk.count, q + 2 * kv, dim) for chunk in chunks]
    return Case(name, Attended(spec, chunks, numbers, mask, image_ends, kv_dtype, turn).on)


def _said(heads: tuple[int, int, int]) -> str:
    return f"{heads[0]}/{heads[1]} heads of {heads[2]}"
