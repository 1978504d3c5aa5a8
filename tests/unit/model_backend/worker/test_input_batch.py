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


def test_a_chunk_that_ends_inside_an_image_is_refused_where_attention_reads_whole_images() -> None:
    ends = (4, 5, 10, 11, 3)
    steps = tuple(SequenceStep(slot, 0, end, (slot,), end == 11) for slot, end in enumerate(ends))
    sequences = tuple(new(slot, 11, span(4, 6, (1, 2, 3))) for slot in range(len(ends)))
    plan = StepPlan(step_id=1, new=sequences, steps=steps)
    assert list(InputBatch(5, 64, 8, BLOCK, VOCAB, whole_images=True).apply(plan)) == [1]
    assert not InputBatch(5, 64, 8, BLOCK, VOCAB).apply(plan)


def test_a_step_is_cut_beside_images() -> None:
    batch = InputBatch(1, 64, 8, BLOCK, VOCAB, whole_images=True)
    whole = SequenceStep(0, 0, 11, (0,), True)
    batch.apply(StepPlan(step_id=1, new=(new(0, 11, span(4, 6, (1, 2, 3))),), steps=(whole,)))
    assert [batch.cut(whole, count) for count in (0, 3, 4, 5, 9, 10)] == [0, 3, 4, 4, 4, 10]
    assert [batch.cut(SequenceStep(0, 4, 7, (), True), count) for count in (0, 3, 6)] == [0, 6, 6]
    assert InputBatch(1, 64, 8, BLOCK, VOCAB).cut(whole, 5) == 5


def test_a_draft_that_cannot_be_computed_is_refused() -> None:
    def step(slot: int, draft: tuple[int, ...], *, end: int = 11, sample: bool = True) -> SequenceStep:
        return SequenceStep(slot, 0, end, (slot,), sample, draft=draft)

    steps = (
        step(0, (1, 2, 3, 4, 5)),
        step(1, (1, 2, 3, 4, 5, 6)),
        step(2, (1, VOCAB)),
        step(3, (1, -1)),
        step(4, (1,), end=10, sample=False),
    )
    batch = InputBatch(5, 64, 8, BLOCK, VOCAB)
    refused = batch.apply(StepPlan(step_id=1, new=tuple(new(slot, 11) for slot in range(5)), steps=steps))
    assert list(refused) == [1, 2, 3, 4]
    assert "beyond the sequence's KV blocks" in refused[1]
    assert "not in the vocabulary" in refused[2]
    assert "does not follow" in refused[4]
