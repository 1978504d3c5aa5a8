"""Steps of a plan -> tensors of one forward pass.

Rows of a batch: first one row for each sequence with a single new token, longest context first, then the rows of each
prefill chunk and of each token with its draft. ``ForwardBatch.steps`` is in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from mmserve.messages.step import SequenceStep
from mmserve.model_backend.attention.interface import AttentionInput, MetadataBuilder
from mmserve.model_backend.platforms.decode_graphs import SAMPLED_HERE, DecodeRows
from mmserve.model_backend.platforms.sampling import Draw
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.worker.input_batch import InputBatch, Int64s, Slot
from mmserve.model_backend.worker.prompt_outputs import PromptOutputs, select_outputs

VIRTUAL = -2
"""In place of the id of an image's row."""


@dataclass(frozen=True)
class ForwardBatch:
    """One forward pass over T rows."""

    steps: tuple[SequenceStep, ...]
    first_rows: tuple[int, ...]
    """Index of each step's first row."""
    slots: Int64s
    """[T]: of each row."""
    token_ids: Int64s
    """[T]: VIRTUAL in place of virtual ids; SAMPLED_HERE where ``last_token`` holds the id."""
    positions: Int64s
    """[axes, T] or [1, T], for rotary embedding."""
    metadata: Any
    """The attention backend's, for all layers."""
    sample_slots: tuple[int, ...]
    """The slot of each row that is sampled from: of the last row of a step's tokens, and of those of its draft."""
    drafts: dict[int, tuple[int, ...]]
    """Slot -> draft, for slots that have one."""
    output_rows: Int64s
    """[S] ascending: the rows that are sampled from, and rows that ``prompt_outputs`` wants."""
    prompt_outputs: PromptOutputs | None
    """None: all outputs are sampled from."""
    decodes: DecodeRows | None
    """What it computes, if that is one token of text of each sequence."""

    def on_device(self, last_token: torch.Tensor, transfers: Transfers) -> RowTensors:
        """``last_token``: int64, by slot the token that it sampled last."""
        ids, positions, outputs = self.token_ids, self.positions, self.output_rows
        to_device = partial(_to_device, transfers)
        here = np.flatnonzero(ids == SAMPLED_HERE)
        if len(here) == len(ids):
            token_ids = last_token.index_select(0, to_device(self.slots))
        else:
            token_ids = to_device(ids.clip(min=0))
            if len(here):
                rows, slots = to_device(np.stack([here, self.slots[here]]))
                token_ids.index_copy_(0, rows, last_token.index_select(0, slots))
        return RowTensors(token_ids, to_device(positions), to_device(outputs))


class RowTensors(NamedTuple):
    """Of a batch, on the device."""

    token_ids: torch.Tensor
    """int64 [T]; 0 in place of virtual ids."""
    positions: torch.Tensor
    """int64 [axes, T] or [1, T]."""
    logits_indices: torch.Tensor
    """int64 [S]."""


def _to_device(transfers: Transfers, values: Int64s) -> torch.Tensor:
    return transfers.to_device(torch.from_numpy(values))


def build_forward_batch(
    input_batch: InputBatch,
    steps: Sequence[SequenceStep],
    vocab_size: int,
    builder: MetadataBuilder[Any],
    transfers: Transfers,
    draws: Callable[[Sequence[Slot]], Sequence[Draw]],
) -> ForwardBatch:
    """At least one step. The ids of tokens that were sampled in an earlier step need not be known on the host.

    ``draws``: ``TokenSampling.draws``.
    """
    singles = sorted((step for step in steps if _is_single(step)), key=lambda step: -step.start)
    ordered = (*singles, *(step for step in steps if not _is_single(step)))
    drafts = {step.slot: step.draft for step in ordered[len(singles) :] if step.draft}
    starts = np.array([step.start for step in ordered])
    counts = np.array([step.num_tokens + len(step.draft) for step in ordered])
    slots = np.array([step.slot for step in ordered])
    ends = counts.cumsum()
    first_rows = ends - counts
    row_slots, indices = slots, starts
    if len(singles) < len(ordered):
        row_slots = np.repeat(slots, counts)
        indices = np.arange(ends[-1]) + np.repeat(starts - first_rows, counts)
    sampling = [index for index, step in enumerate(ordered) if step.sample]
    sample_slots = tuple(ordered[index].slot for index in sampling)
    sampling_rows = ends[sampling] - 1
    if drafts:
        num_sampled = np.array([1 + len(ordered[index].draft) for index in sampling])
        sample_slots = tuple(np.repeat(sample_slots, num_sampled).tolist())
        sampling_rows = _last_rows(sampling_rows, num_sampled)
    slot_mapping = input_batch.slot_mapping(row_slots, indices)
    image_ends = _image_ends(input_batch, ordered, first_rows, indices) if input_batch.whole_images else None
    rotary = input_batch.rotary_positions.of_rows(slots, starts, counts, indices)
    output_rows, prompt_outputs = select_outputs(input_batch, ordered, first_rows, sampling_rows, vocab_size, transfers)
    token_ids = _token_ids(input_batch, ordered, vocab_size)
    decodes = None
    if len(singles) == len(ordered) and prompt_outputs is None and _is_text(token_ids, rotary):
        drawn = draws([input_batch[slot] for slot in sample_slots])
        decodes = DecodeRows(row_slots, token_ids, rotary[0], output_rows, drawn)
    return ForwardBatch(
        steps=ordered,
        first_rows=tuple(first_rows.tolist()),
        slots=row_slots,
        token_ids=token_ids,
        positions=rotary,
        metadata=builder.build(AttentionInput(slots, starts, counts, input_batch.blocks, slot_mapping, image_ends)),
        sample_slots=sample_slots,
        drafts=drafts,
        output_rows=output_rows,
        prompt_outputs=prompt_outputs,
        decodes=decodes,
    )


def _is_text(token_ids: Int64s, positions: Int64s) -> bool:
    """False if a row is an image's, or positions have several axes."""
    return len(positions) == 1 and VIRTUAL not in token_ids.tolist()


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


def _token_ids(input_batch: InputBatch, steps: Sequence[SequenceStep], vocab_size: int) -> Int64s:
    """See ``ForwardBatch``."""
    parts: list[Int64s] = []
    for step in steps:
        if _is_single(step) and step.start >= input_batch[step.slot].num_given:
            parts.append(_SAMPLED_HERE)
            continue
        ids = input_batch[step.slot].chunk(step.start, step.num_tokens)
        parts.append(np.where(ids < vocab_size, ids, VIRTUAL))
        if step.draft:
            parts.append(np.array(step.draft, dtype=np.int64))
    return np.concatenate(parts)


_SAMPLED_HERE: Int64s = np.full(1, SAMPLED_HERE)
