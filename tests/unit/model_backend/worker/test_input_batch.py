"""Sequences and steps that contradict themselves are refused, and leave the other slots alone."""

from __future__ import annotations

from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, SequenceStep, StepPlan
from mmserve.model_backend.models.positions import grid_positions
from mmserve.model_backend.worker.input_batch import InputBatch

BLOCK, VOCAB = 16, 100


def span(start: int, num_tokens: int, grid: tuple[int, int, int]) -> MediaSpan:
    handle = Handle(1, 0, 0)
    return MediaSpan(start=start, num_tokens=num_tokens, item_id=0, data=None, embed=handle, media_index=0, grid=grid)


def new(slot: int, num_tokens: int, *spans: MediaSpan) -> NewSequence:
    return NewSequence(
        slot=slot,
        token_ids=bytes(8 * num_tokens),
        num_prompt_tokens=num_tokens,
        spans=spans,
        sampling=SamplingParams(max_tokens=1),
    )


def test_a_sequence_whose_grid_is_not_that_of_its_tokens_is_refused() -> None:
    batch = InputBatch(3, 64, 8, BLOCK, VOCAB, grid_positions)
    sequences = (new(0, 10, span(2, 6, (1, 2, 3))), new(1, 10, span(2, 6, (1, 2, 2))))
    steps = (SequenceStep(0, 0, 10, (0,), True), SequenceStep(1, 0, 10, (1,), True))
    refused = batch.apply(StepPlan(step_id=1, new=sequences, steps=steps))
    assert list(refused) == [1]
    assert "grid" in refused[1]
