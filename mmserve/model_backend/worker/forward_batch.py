"""Steps of a plan -> tensors of one forward pass. Knows slots and blocks, not the model.

Rows of a batch: first one row for each sequence with a single new token, longest context first, then each prefill
chunk's rows. ``Batch.steps`` is in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmserve.messages.step import SequenceStep
from mmserve.model_backend.attention.interface import AttentionInput, MetadataBuilder
from mmserve.model_backend.models.interface import PositionFunction
from mmserve.model_backend.worker.input_batch import InputBatch


@dataclass(frozen=True)
class Batch:
    """One forward pass over T rows."""

    steps: tuple[SequenceStep, ...]
    first_rows: tuple[int, ...]
    """Where each step's rows begin."""
    token_ids: torch.Tensor
    """int64 [T]; 0 in place of virtual ids."""
    positions: torch.Tensor
    """int64 [axes, T], for rotary embedding."""
    metadata: Any
    """The attention backend's, for all layers."""
    sample_slots: tuple[int, ...]
    sample_rows: torch.Tensor
    """int64 [S], ascending: the last row of each step that samples."""


def build(
    table: InputBatch,
    steps: Sequence[SequenceStep],
    vocab_size: int,
    device: torch.device,
    builder: MetadataBuilder[Any],
    rotary_positions: PositionFunction,
) -> Batch:
    """At least one step."""
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
    row_slots = np.repeat(slots, counts)
    slot_mapping = table.kv_slots(row_slots, positions)
    rotary = rotary_positions(positions, row_slots, lambda slot: table[slot].spans)
    token_ids, positions_, sample_rows = (
        torch.from_numpy(values).to(device)
        for values in (np.where(ids < vocab_size, ids, 0), rotary, ends[sampling] - 1)
    )
    return Batch(
        steps=ordered,
        first_rows=tuple(first_rows.tolist()),
        token_ids=token_ids,
        positions=positions_,
        metadata=builder.build(AttentionInput(slots, starts, counts, table.blocks, slot_mapping)),
        sample_slots=tuple(ordered[index].slot for index in sampling),
        sample_rows=sample_rows,
    )
