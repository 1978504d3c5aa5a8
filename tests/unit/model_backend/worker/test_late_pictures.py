"""A rank whose device computes late reads pictures' rows beside what it computes, and no longer than it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmserve.ipc.arena import Arena
from mmserve.messages.media import MediaSpan
from mmserve.messages.step import NewSequence, SequenceStep, StepPlan
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.devices.late_device import LateDevice, LatePlatform, LateRowCopies
from tests.fakes.models.checkpoints import IMAGE, make_llava
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.ranks.engine import GREEDY, make_runner

HIDDEN, ROWS = 64, 16


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 16)
    yield made
    made.close()


@pytest.fixture
def device() -> Iterator[LateDevice]:
    with LateDevice() as device:
        yield device


def late_runner(directory: Path, arena: Arena, device: LateDevice) -> ModelRunner:
    runner = make_runner(directory, arena, platform=LatePlatform(device))
    device.loading = False
    return runner


def rows_in(arena: Arena, *, bad: float = 0.0) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """A prompt with a picture, whose rows are in the arena."""
    rows = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(3))
    rows[5, 7] += bad
    handle, _ = put_rows(arena, rows, 0)
    return prompt_with_images([5, *[IMAGE] * ROWS, 6], [handle], image_id=IMAGE, num_tokens=ROWS)


def plans(prompt: list[int], spans: tuple[MediaSpan, ...]) -> tuple[StepPlan, StepPlan]:
    """Text alone; then the picture beside a token of it."""
    text, picture = list(range(30, 37)), prompt
    first, second = (
        NewSequence(
            slot=slot,
            token_ids=torch.tensor(ids, dtype=torch.int64).numpy().tobytes(),
            num_prompt_tokens=len(ids),
            spans=own,
            sampling=GREEDY,
        )
        for slot, ids, own in ((0, text, ()), (1, picture, spans))
    )
    return (
        StepPlan(step_id=1, new=(first,), steps=(SequenceStep(0, 0, len(text), (0,), True),)),
        StepPlan(
            step_id=2,
            new=(second,),
            steps=(SequenceStep(0, len(text), 1, (), True), SequenceStep(1, 0, len(picture), (1, 2), True)),
        ),
    )


def test_a_picture_waits_for_no_step_that_was_launched_before(
    directory: Path, arena: Arena, device: LateDevice
) -> None:
    prompt, spans = rows_in(arena)
    plain = make_runner(directory, arena)
    expected = [plain.step(plan).tokens for plan in plans(prompt, spans)]
    runner = late_runner(directory, arena, device)
    first, second = plans(prompt, spans)
    in_flight = [runner.launch(first)]
    queued = device.num_queued
    in_flight.append(runner.launch(second))
    assert device.num_queued > queued > 0, "the launch of the picture has computed nothing"
    arena.begin_epoch(1 << 60)  # the extent is another's from here on
    arena._view[: len(arena._view)] = b"\xff" * len(arena._view)
    assert [runner.collect(each).tokens for each in in_flight] == expected


@pytest.mark.parametrize(("bad", "lost"), [(float("nan"), False), (float("inf"), False), (0.0, True)])
def test_rows_that_cannot_be_used_fail_their_sequence_without_a_wait(
    directory: Path, arena: Arena, device: LateDevice, bad: float, lost: bool
) -> None:
    prompt, spans = rows_in(arena, bad=bad)
    runner = late_runner(directory, arena, device)
    first, second = plans(prompt, spans)
    in_flight = [runner.launch(first)]
    queued = device.num_queued
    if lost:
        arena.begin_epoch(1 << 60)
    in_flight.append(runner.launch(second))
    assert device.num_queued > queued
    results = [runner.collect(each) for each in in_flight]
    assert [(failure.slot, failure.media_lost) for failure in results[1].failures] == [(1, lost)]
    assert [slot for slot, _ in results[1].tokens] == [0]


def test_no_copy_is_under_way_when_a_step_fails(
    directory: Path, arena: Arena, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out while rows are placed, the first time: the lease may end with the step's error."""
    prompt, spans = rows_in(arena)
    runner = late_runner(directory, arena, device)
    writer, copies = runner._image_writer, runner._image_writer._copies
    assert isinstance(copies, LateRowCopies)
    tries: list[int] = []
    place = writer._place

    def short(*arguments: Any) -> None:
        tries.append(len(copies._under_way))
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert len(copies._under_way) == 1, "what the failed try has begun is over"
        place(*arguments)

    monkeypatch.setattr(writer, "_place", short)
    first, second = plans(prompt, spans)
    results = [runner.step(first), runner.step(second)]
    assert not results[1].failures
    assert results[1].out_of_memory
    assert len(tries) >= 2
    assert not copies._under_way
