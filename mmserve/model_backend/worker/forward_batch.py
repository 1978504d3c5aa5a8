"""Steps of a plan -> tensors of one forward pass.

Rows of a batch: first one row for each sequence with a single new token, longest context first, then the rows of each
prefill chunk and of each token with its draft. ``ForwardBatch.steps`` is in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmserve.messages.step import SequenceStep
from mmserve.model_backend.attention.interface import AttentionInput, MetadataBuilder
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.worker.input_batch import InputBatch, Int64s
from mmserve.model_backend.worker.prompt_outputs import PromptOutputs, select_outputs


@dataclass(frozen=True)
class ForwardBatch:
    """One forward pass over T rows."""

    steps: tuple[SequenceStep, ...]
    first_rows: tuple[int, ...]
    """Index of each step's first row."""
    token_ids: torch.Tensor
    """int64 [T]; 0 in place of virtual ids."""
    positions: torch.Tensor
    """int64 [axes, T] or [1, T], for rotary embedding."""
    metadata: Any
    """The attention backend's, for all layers."""
    sample_slots: tuple[int, ...]
    """The slot of each row that is sampled from: of the last row of a step's tokens, and of those of its draft."""
    drafts: dict[int, tuple[int, ...]]
    """Slot -> draft, for slots that have one."""
    logits_indices: torch.Tensor
    """int64 [S], ascending: the rows that are sampled from, and rows that ``prompt_outputs`` wants."""
    prompt_outputs: PromptOutputs | None
    """None: all outputs are sampled from."""


def build_forward_batch(
    input_batch: InputBatch,
    steps: Sequence[SequenceStep],
    last_token: torch.Tensor,
    vocab_size: int,
    builder: MetadataBuilder[Any],
    transfers: Transfers,
) -> ForwardBatch:
    """Tensors on the device of ``last_token``: int64 [slots], the token that each slot sampled last.

    Rows of tokens that were sampled in an earlier step read ``last_token``, so their ids need not be known on the
    host. At least one step.
    """
    singles = sorted((step for step in steps if _is_single(step)), key=lambda step: -step.start)
    ordered = (*singles, *(step for step in steps if not _is_single(step)))
    drafts = {step.slot: step.draft for step in ordered[len(singles) :] if step.draft}
    starts = np.array([step.start for step in ordered])
    counts = np.array([step.num_tokens + len(step.draft) for step in ordered])
    slots = np.array([step.slot for step in ordered])
    ends = counts.cumsum()
    first_rows = ends - counts
    indices = np.arange(ends[-1]) + np.repeat(starts - first_rows, counts)
    sampling = [index for index, step in enumerate(ordered) if step.sample]
    sample_slots = tuple(ordered[index].slot for index in sampling)
    sampling_rows = ends[sampling] - 1
    if drafts:
        num_sampled = np.array([1 + len(ordered[index].draft) for index in sampling])
        sample_slots = tuple(np.repeat(sample_slots, num_sampled).tolist())
        sampling_rows = _last_rows(sampling_rows, num_sampled)
    slot_mapping = input_batch.slot_mapping(np.repeat(slots, counts), indices)
    image_ends = _image_ends(input_batch, ordered, first_rows, indices) if input_batch.whole_images else None
    rotary = input_batch.rotary_positions.of_rows(slots, starts, counts, indices)
    output_rows, prompt_outputs = select_outputs(input_batch, ordered, first_rows, sampling_rows, vocab_size, transfers)
    positions_, logits_indices = (transfers.to_device(torch.from_numpy(values)) for values in (rotary, output_rows))
    return ForwardBatch(
        steps=ordered,
        first_rows=tuple(first_rows.tolist()),
        token_ids=_token_ids(input_batch, ordered, last_token, vocab_size, transfers),
        positions=positions_,
        metadata=builder.build(AttentionInput(slots, starts, counts, input_batch.blocks, slot_mapping, image_ends)),
        sample_slots=sample_slots,
        drafts=drafts,
        logits_indices=logits_indices,
        prompt_outputs=prompt_outputs,
    )


def _is_single(step: SequenceStep) -> bool:
    return step.num_tokens == 1 and not step.draft


def _last_rows(last_rows: Int64s, counts: Int64s) -> Int64s:
    """For each of ``last_rows`` the so many rows that end with it."""
    ends = counts.cumsum()
    rows: Int64s = np.arange(ends[-1]) + np.repeat(last_rows + 1 - ends, counts)
    return rows


def _image_ends(
    input_batch: InputBatch, steps: Sequence[SequenceStep], first_rows: Int64s, indices: Int64s
) -> Int64s | None:
    """See ``AttentionInput``. No chunk ends inside an image, so one row alone attends to nothing after it."""
    ends = None
    for step, first_row in zip(steps, first_rows.tolist(), strict=True):
        if step.num_tokens == 1:
            continue
        for span in input_batch[step.slot].spans_within(step.start, step.num_tokens):
            ends = indices + 1 if ends is None else ends
            end = span.start + span.num_tokens
            row = first_row - step.start
            ends[row + max(span.start, step.start) : row + end] = end
    return ends


def _token_ids(
    input_batch: InputBatch,
    steps: Sequence[SequenceStep],
    last_token: torch.Tensor,
    vocab_size: int,
    transfers: Transfers,
) -> torch.Tensor:
    """int64 [T]: tokens that were sampled here from ``last_token``, all others from the host."""
    parts: list[Int64s] = []
    sampled_rows, sampled_slots = [], []
    for row, step in enumerate(steps):
        if _is_single(step) and step.start >= input_batch[step.slot].num_given:
            sampled_rows.append(row)  # steps of one token come first: index of the step = index of its row
            sampled_slots.append(step.slot)
            parts.append(_UNKNOWN)
        else:
            parts.append(input_batch[step.slot].chunk(step.start, step.num_tokens))
            if step.draft:
                parts.append(np.array(step.draft, dtype=np.int64))
    if len(sampled_rows) == len(steps):
        return last_token.index_select(0, transfers.to_device(torch.tensor(sampled_slots)))
    ids = np.concatenate(parts)
    token_ids = transfers.to_device(torch.from_numpy(np.where(ids < vocab_size, ids, 0)))
    if sampled_rows:
        rows, slots = transfers.to_device(torch.tensor([sampled_rows, sampled_slots]))
        token_ids.index_copy_(0, rows, last_token.index_select(0, slots))
    return token_ids


_UNKNOWN: Int64s = np.zeros(1, dtype=np.int64)
