"""Decode steps as graphs: which are captured, what fills them up, and that a replay reads its own tensors alone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
import torch

from mmserve.model_backend.models.interface import DeepStackRows
from mmserve.model_backend.platforms.cuda.graphs.executor import GraphExecutor
from tests.fakes.graph_capture import Recorder

WIDTH, RUNGS = 4, (1, 2, 4, 8)


class Model:
    """Doubles hidden states in place, and adds positions to those that are wanted."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        wanted: torch.Tensor,
        deepstack: DeepStackRows | None = None,
    ) -> torch.Tensor:
        self.rows.append(len(hidden))
        hidden.mul_(2)
        return (hidden + positions[0][:, None])[wanted]


class Attention:
    """Its metadata is its key."""

    def graph_key(self, metadata: Hashable) -> Hashable:
        return metadata


class Setup:
    def __init__(self, **capture: Any) -> None:
        self.model, self.capture = Model(), Recorder(**capture)
        self.executor = GraphExecutor(self.model, Attention(), RUNGS, self.capture)  # type: ignore[arg-type]
        self.kv = torch.zeros(1)

    def step(self, rows: int, wanted: list[int] | None = None, key: Hashable = "key", **more: Any) -> None:
        """A step with new numbers, whose result is compared with the model's own."""
        generator = torch.Generator().manual_seed(self.capture.num_replays)
        hidden = torch.randn(rows, WIDTH, generator=generator)
        positions = more.pop("positions", torch.arange(rows)[None] + 10 * rows)
        indices = torch.tensor(list(range(rows)) if wanted is None else wanted, dtype=torch.int64)
        expected = Model().forward(hidden.clone(), positions, self.kv, key, indices)
        found = self.executor.forward(hidden, positions, self.kv, key, indices, **more)
        assert torch.equal(found, expected)
        hidden.fill_(torch.nan)  # a graph must not read what one step has brought
        positions.fill_(-1)

    @property
    def counts(self) -> tuple[int, int]:
        return self.capture.num_captures, self.capture.num_replays


def test_a_step_is_filled_up_to_the_next_rung_and_captured_once() -> None:
    setup = Setup()
    for rows in (3, 4, 3, 2, 1, 8, 5):
        setup.step(rows)
    assert setup.counts == (4, 7)
    assert set(setup.model.rows) == {1, 2, 4, 8}


def test_rows_that_are_not_wanted_are_left_out() -> None:
    setup = Setup()
    setup.step(8)
    for wanted in ([0, 3], [2], [], [0, 1, 2, 3]):
        setup.step(4, wanted)
    assert setup.counts == (2, 5)


def test_a_smaller_step_after_a_larger_one_reads_none_of_its_numbers() -> None:
    setup = Setup()
    setup.step(8, [7])
    setup.step(3, [2])
    _, _, wanted = setup.executor._inputs.of(4)  # type: ignore[union-attr]
    assert wanted.tolist() == [2, 0, 0, 0]
    hidden, positions, _ = setup.executor._inputs.of(4)  # type: ignore[union-attr]
    assert not hidden[3].any()
    assert positions[0, 3] == 0


@pytest.mark.parametrize(
    "step",
    [
        {"rows": 9},
        {"rows": 2, "key": None},
        {"rows": 2, "positions": torch.ones(3, 2, dtype=torch.int64)},
        {"rows": 2, "deepstack": DeepStackRows(torch.zeros(0), torch.zeros(0))},
    ],
    ids=["too many rows", "a prompt", "three axes", "rows of pictures"],
)
def test_other_steps_are_computed_as_they_are(step: dict[str, Any]) -> None:
    setup = Setup()
    setup.step(**step)
    assert setup.counts == (0, 0)
    assert setup.model.rows == [step["rows"]]


def test_graphs_are_captured_again_when_a_step_needs_other_memory(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    caplog.set_level("INFO")
    for key in ("small", "small", "large", "large"):
        setup.step(2, key=key)
        setup.step(1, key=key)
    assert setup.counts == (4, 8)
    assert "2 graphs are captured again" in caplog.text


def test_a_result_outlives_the_next_replay() -> None:
    setup = Setup()
    inputs = torch.ones(1, WIDTH), torch.zeros(1, 1, dtype=torch.int64), setup.kv, "key", torch.tensor([0])
    first = setup.executor.forward(*inputs)
    kept = first.clone()
    setup.step(1)
    assert torch.equal(first, kept)


def test_what_cannot_be_captured_is_computed_as_it_is_with_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(fails=True)
    for _ in range(3):
        setup.step(2)
    assert setup.counts == (0, 0)
    assert setup.executor.rungs == ()
    assert caplog.text.count("cannot be captured: operation not permitted") == 1


def test_rungs_for_which_memory_runs_out_are_dropped_and_the_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(most_rows=4)
    for rows in (8, 4, 2, 1, 7, 3):  # as the warm-up does, then steps of requests
        setup.step(rows)
    assert setup.executor.rungs == (1, 2, 4)
    assert setup.counts == (3, 4), "steps of 7 and 8 rows are computed as they are"
    assert caplog.text.count("no memory for a graph of 8 rows") == 1


def test_a_step_whose_own_graph_had_no_memory_takes_the_next_larger_one() -> None:
    setup = Setup()
    setup.step(8)
    setup.capture._most_rows = 0
    setup.step(3)
    assert setup.executor.rungs == (1, 2, 8)
    setup.step(4)
    assert setup.counts == (1, 2)
