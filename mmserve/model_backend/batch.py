"""Steps of a plan -> tensors of one forward pass. Knows slots and blocks, not the model.

Rows of a batch: first one row for each sequence with a single new token, longest context first, then each prefill
chunk's rows. ``Batch.steps`` is in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmserve.deployment import KV_BLOCK_TOKENS
from mmserve.messages.step import SequenceStep
from mmserve.model_backend.attention.interface import DecodeGroup, PrefillChunk, StepLayout
from mmserve.model_backend.slots import Int64s, SlotTable

_SMALL_TABLE_BLOCKS = 16
"""Rows with a context this short are not worth a group of their own."""


@dataclass(frozen=True)
class Batch:
    """One forward pass over T rows."""

    steps: tuple[SequenceStep, ...]
    first_rows: tuple[int, ...]
    """Where each step's rows begin."""
    token_ids: torch.Tensor
    """int64 [T]; 0 in place of virtual ids."""
    positions: torch.Tensor
    """int64 [T]."""
    layout: StepLayout
    sample_slots: tuple[int, ...]
    sample_rows: torch.Tensor
    """int64 [S]: the last row of each step that samples."""


def build(table: SlotTable, steps: Sequence[SequenceStep], vocab_size: int, like: torch.Tensor) -> Batch:
    """``like`` gives the masks' dtype and all tensors' device. At least one step."""
    singles = sorted((step for step in steps if step.num_tokens == 1), key=lambda step: -step.start)
    ordered = (*singles, *(step for step in steps if step.num_tokens > 1))
    starts = np.array([step.start for step in ordered])
    counts = np.array([step.num_tokens for step in ordered])
    slots = np.array([step.slot for step in ordered])
    ends = counts.cumsum()
    first_rows = ends - counts
    positions = np.arange(ends[-1]) + np.repeat(starts - first_rows, counts)
    ids = np.concatenate([table[step.slot].chunk(step.start, step.num_tokens) for step in ordered])
    sampling = [index for index, step in enumerate(ordered) if step.sample]
    return Batch(
        steps=ordered,
        first_rows=tuple(first_rows.tolist()),
        token_ids=_to(like, np.where(ids < vocab_size, ids, 0)),
        positions=_to(like, positions),
        layout=StepLayout(
            kv_slots=_to(like, table.kv_slots(np.repeat(slots, counts), positions)),
            decodes=tuple(_decode_groups(table, slots[: len(singles)], starts[: len(singles)] + 1, like)),
            chunks=tuple(
                _chunk(table, step, first, like)
                for step, first in zip(ordered, first_rows.tolist(), strict=True)
                if step.num_tokens > 1
            ),
        ),
        sample_slots=tuple(ordered[index].slot for index in sampling),
        sample_rows=_to(like, ends[sampling] - 1),
    )


def _decode_groups(table: SlotTable, slots: Int64s, lengths: Int64s, like: torch.Tensor) -> Iterator[DecodeGroup]:
    """Groups of rows whose block tables differ by less than half, so that padding costs less than the work."""
    num_blocks = -(-lengths // KV_BLOCK_TOKENS)
    first = 0
    while first < len(slots):
        widest = int(num_blocks[first])
        shortest = widest // 2 if widest > _SMALL_TABLE_BLOCKS else 0
        end = first + int(np.count_nonzero(num_blocks[first:] > shortest))
        outside = np.arange(widest * KV_BLOCK_TOKENS) >= lengths[first:end, None]
        yield DecodeGroup(
            rows=slice(first, end),
            blocks=_to(like, table.blocks[slots[first:end], :widest].reshape(-1)),
            mask=_mask(torch.from_numpy(outside)[:, None, None], like),
        )
        first = end


def _chunk(table: SlotTable, step: SequenceStep, first_row: int, like: torch.Tensor) -> PrefillChunk:
    rows = slice(first_row, first_row + step.num_tokens)
    if step.start == 0:
        return PrefillChunk(rows, None, None)
    context = np.arange(step.start + step.num_tokens)
    later = torch.ones(step.num_tokens, len(context), dtype=torch.bool).triu_(step.start + 1)
    return PrefillChunk(
        rows,
        context=_to(like, table.kv_slots(np.full_like(context, step.slot), context)),
        mask=_mask(later[None, None], like),
    )


def _mask(hidden: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill_(hidden.to(like.device), float("-inf"))


def _to(like: torch.Tensor, values: Int64s) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device)
