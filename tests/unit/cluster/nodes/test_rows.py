"""Rows travel with the plan that computes them: the right ones, and none whose handle is stale."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmserve.cluster.nodes.rows import PlannedRows
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, RowPiece, SequenceStep, StepPlan
from mmserve.model_backend.worker.embedding_source import SentRows

ROW_NBYTES = 4
ROWS = bytes(range(40))
HANDLE = Handle(7, 0, len(ROWS))
SAMPLING = SamplingParams(max_tokens=5)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 16)
    made.open(HANDLE)
    made.write(HANDLE, ROWS)
    yield made
    made.close()


def span(start: int, num_tokens: int, first_row: int = 0) -> MediaSpan:
    return MediaSpan(
        start=start, num_tokens=num_tokens, item_id=1, data=None, embed=HANDLE, media_index=0, first_row=first_row
    )


def new(slot: int, *spans: MediaSpan) -> NewSequence:
    return NewSequence(slot=slot, token_ids=b"", num_prompt_tokens=30, spans=spans, sampling=SAMPLING)


def step(slot: int, start: int, num_tokens: int) -> SequenceStep:
    return SequenceStep(slot, start, num_tokens, (), False)


def test_only_rows_of_the_steps_are_read(arena: Arena) -> None:
    rows = PlannedRows(arena, ROW_NBYTES)
    plan = StepPlan(step_id=1, new=(new(3, span(5, 6), span(20, 4, first_row=6)),), steps=(step(3, 0, 8),))
    assert rows.of(plan) == (RowPiece(HANDLE, 0, bytearray(ROWS[:12])),)
    assert rows.of(StepPlan(step_id=2, steps=(step(3, 8, 14),))) == (
        RowPiece(HANDLE, 12, bytearray(ROWS[12:24])),
        RowPiece(HANDLE, 24, bytearray(ROWS[24:32])),
    )
    assert rows.of(StepPlan(step_id=3, steps=(step(3, 24, 1),))) == ()


def test_rows_of_two_sequences_with_one_picture_are_sent_once(arena: Arena) -> None:
    plan = StepPlan(step_id=1, new=(new(0, span(1, 4)), new(1, span(1, 4))), steps=(step(0, 0, 9), step(1, 0, 9)))
    assert len(PlannedRows(arena, ROW_NBYTES).of(plan)) == 1


def test_a_slot_that_was_freed_has_no_pictures(arena: Arena) -> None:
    rows = PlannedRows(arena, ROW_NBYTES)
    rows.of(StepPlan(step_id=1, new=(new(0, span(0, 4)),)))
    assert rows.of(StepPlan(step_id=2, free=(0,), new=(new(1),), steps=(step(0, 0, 4),))) == ()


def test_stale_rows_and_rows_beyond_the_embedding_are_left_out(arena: Arena) -> None:
    beyond = StepPlan(step_id=1, new=(new(0, span(0, 11)),), steps=(step(0, 0, 11),))
    assert PlannedRows(arena, ROW_NBYTES).of(beyond) == ()
    arena.erase(HANDLE)
    assert (
        PlannedRows(arena, ROW_NBYTES).of(StepPlan(step_id=1, new=(new(0, span(0, 4)),), steps=(step(0, 0, 4),))) == ()
    )


def test_a_rank_reads_parts_of_what_was_sent_and_nothing_else() -> None:
    sent = SentRows()
    sent.replace((RowPiece(HANDLE, 12, bytearray(ROWS[12:24])),))
    sent.check(HANDLE)
    assert sent.part(HANDLE, 16, 24) == ROWS[16:24]
    for start, end in ((8, 16), (16, 28)):
        with pytest.raises(StaleHandle):
            sent.part(HANDLE, start, end)
    sent.replace(())
    with pytest.raises(StaleHandle):
        sent.check(HANDLE)
