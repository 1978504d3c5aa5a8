"""Two ranks: an error of one of them for one sequence fails that sequence on both, and no rank waits for the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import pytest
import torch

from mmserve.ipc.arena import Arena
from mmserve.messages.media import MediaSpan
from mmserve.messages.step import BlockCopy
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.models.checkpoints import IMAGE, make_llava
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.ranks.engine import Driver, make_runner
from tests.fakes.ranks.ranks_in_threads import RanksInThreads

GOOD, BAD = list(range(10, 40)), [9, 250, 8]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def good_output(directory: Path) -> list[int]:
    driver = Driver(make_runner(directory))
    sequence = driver.add(0, GOOD)
    driver.run(6)
    return sequence.output


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena.create(1 << 16)) as made:
        yield made


@pytest.fixture
def ranks(directory: Path, arena: Arena) -> Iterator[RanksInThreads]:
    with closing(RanksInThreads(directory, arena)) as made:
        yield made


def fail_in(runner: ModelRunner, name: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """Makes a method of one rank raise whenever BAD takes part."""
    owner: Any = runner._sampling._sampler if name == "sample" else runner
    function = getattr(owner, name)

    def failing(*arguments: Any) -> Any:
        concerned = arguments[-1]  # steps, or rows of a sampler
        if any(BAD[1] in runner._input_batch[each.slot].tokens for each in concerned):
            raise error("as it happens")
        return function(*arguments)

    monkeypatch.setattr(owner, name, failing)


def run_with_bad(ranks: RanksInThreads) -> tuple[Driver, list[list[int]]]:
    """Outputs of three good sequences beside a bad one in slot 2."""
    driver = Driver(ranks)
    sequences = [driver.add(0, GOOD), driver.add(1, GOOD)]
    driver.step()
    driver.add(2, BAD)
    sequences.append(driver.add(3, GOOD))
    driver.run(6, may_fail={2})
    return driver, [sequence.output[:6] for sequence in sequences]


@pytest.mark.parametrize(
    ("rank", "method"), [(0, "_build"), (1, "_build"), (0, "sample")], ids=["build-0", "build-1", "sample-0"]
)
@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_an_error_of_one_rank_fails_only_the_sequence_at_fault(
    ranks: RanksInThreads,
    good_output: list[int],
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    method: str,
    error: type[Exception],
) -> None:
    fail_in(ranks.runners[rank], method, monkeypatch, error)
    driver, outputs = run_with_bad(ranks)
    assert outputs == [good_output] * 3
    assert ("as it happens" if rank == 0 else "another rank") in driver.failures[2].message
    first, second = (runner._input_batch[3] for runner in ranks.runners)
    assert (first.tokens, first.length) == (second.tokens, second.length)


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_that_runs_out_on_one_rank_cuts_the_step_on_all(
    ranks: RanksInThreads, good_output: list[int], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    runner = ranks.runners[rank]
    build = runner._build

    def limited(steps: Any) -> Any:
        if sum(step.num_tokens for step in steps) > 8:
            raise MemoryError("as it happens")
        return build(steps)

    monkeypatch.setattr(runner, "_build", limited)
    driver = Driver(ranks)
    sequences = [driver.add(slot, GOOD) for slot in range(3)]
    assert driver.step().out_of_memory
    driver.run(6)
    assert [sequence.output for sequence in sequences] == [good_output] * 3


@pytest.mark.parametrize("rank", [0, 1])
def test_an_image_that_one_rank_cannot_read_fails_its_sequence(
    ranks: RanksInThreads, arena: Arena, good_output: list[int], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    handle, _ = put_rows(arena, torch.randn(16, 64), 0)
    prompt, spans = prompt_with_images([5, *[IMAGE] * 16, 6], [handle], image_id=IMAGE, num_tokens=16)

    def broken(*_: object) -> MediaSpan:
        raise RuntimeError("as it happens")

    monkeypatch.setattr(ranks.runners[rank]._image_writer, "_rows", broken)
    driver = Driver(ranks)
    healthy = driver.add(0, GOOD)
    driver.add(1, prompt, spans=spans)
    driver.run(6, may_fail={1})
    assert not driver.failures[1].media_lost
    assert "could not read" in driver.failures[1].message
    assert healthy.output == good_output


@pytest.mark.parametrize("rank", [0, 1])
def test_a_copy_that_fails_on_one_rank_fails_its_sequence(
    ranks: RanksInThreads, good_output: list[int], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    attention = ranks.runners[rank]._attention
    copy_tokens = attention.copy_tokens

    def broken(kv: torch.Tensor, copies: list[BlockCopy]) -> None:
        if 150 in [copy.target for copy in copies]:
            raise RuntimeError("as it happens")
        copy_tokens(kv, copies)

    monkeypatch.setattr(attention, "copy_tokens", broken)
    driver = Driver(ranks)
    first = driver.add(0, GOOD)
    driver.step()
    copied = (first.blocks[1], 13)
    healthy = driver.add(1, GOOD, shared=tuple(first.blocks[:1]), copied=copied, recycled=[151])
    driver.add(2, GOOD, shared=tuple(first.blocks[:1]), copied=copied, recycled=[150])
    driver.run(6, may_fail={2})
    assert 2 in driver.failures
    assert [first.output[:6], healthy.output] == [good_output] * 2


def test_an_error_between_collectives_ends_the_ranks(ranks: RanksInThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank waits in a collective: it can only be ended. (Here its wait has a limit.)"""

    def broken(*_: object) -> None:
        raise RuntimeError("as it happens")

    monkeypatch.setattr(ranks.runners[1]._executor, "forward", broken)
    driver = Driver(ranks)
    driver.add(0, GOOD)
    ranks.runners[0]._tp.meeting.barrier._timeout = 0.2  # type: ignore[attr-defined]
    with pytest.raises((RuntimeError, BrokenBarrierError)):
        driver.step()
