"""Decode steps as graphs: which are captured, what fills them up, and which tokens they read and leave."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.cuda.graphs.decode import CapturedDecodes
from mmserve.model_backend.platforms.decode_graphs import SAMPLED_HERE, Decoded, DecodeRows, GraphParts
from mmserve.model_backend.platforms.sampling import GREEDY, Draw, TorchSampling
from mmserve.model_backend.transfers import PlainTransfers
from tests.fakes.devices.graph_capture import OneLaunch, Recorder

VOCAB, SLOTS, RUNGS = 97, 10, (1, 2, 4, 8)
TRANSFERS = PlainTransfers(torch.device("cpu"))
DRAWN = Draw(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, key=5)


class Model:
    """Its likeliest token is the one before plus the position."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids[:, None].float()

    def forward(
        self, hidden: torch.Tensor, positions: torch.Tensor, kv_cache: Any, metadata: Any, wanted: Any
    ) -> torch.Tensor:
        assert wanted is None, "all rows"
        self.rows.append(len(hidden))
        return hidden + positions[0][:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return 3.0 * torch.cos((torch.arange(VOCAB) - hidden) * (2 * torch.pi / VOCAB))


class Attention:
    """Its metadata is its key."""

    def graph_key(self, metadata: Hashable) -> Hashable:
        return metadata


class Setup:
    def __init__(self, sampling: TorchSampling | None = None, tp: TpGroup | None = None, **capture: Any) -> None:
        self.model, self.capture = Model(), Recorder(**capture)
        self.last_token = torch.zeros(SLOTS + 1, dtype=torch.int64)
        parts: Any = (
            self.model,
            Attention(),
            torch.zeros(1),
            self.last_token,
            sampling or OneLaunch(),
            tp or TpGroup(),
        )
        self.graphs = CapturedDecodes(GraphParts(*parts, RUNGS, VOCAB, torch.float32), TRANSFERS, self.capture)

    def step(
        self, slots: Sequence[int], *, sampling: Sequence[int] | None = None, known: int = SAMPLED_HERE, **more: Any
    ) -> Decoded | None:
        """At position 10 + slot; ``known``: the token id of all rows."""
        numbers = np.array(slots, dtype=np.int64)
        rows = np.arange(len(slots)) if sampling is None else np.array(sampling, dtype=np.int64)
        draws = more.get("draws") or [GREEDY] * len(rows)
        made = DecodeRows(numbers, np.full(len(slots), known), 10 + numbers, rows, draws)
        return self.graphs.decode(made, more.get("key", "key"))

    def tokens(self, *arguments: Any, **more: Any) -> list[int]:
        decoded = self.step(*arguments, **more)
        assert decoded is not None
        assert decoded.tokens is not None
        return [int(token) for token in decoded.tokens]

    @property
    def counts(self) -> tuple[int, int]:
        return self.capture.num_captures, self.capture.num_replays


def test_a_step_is_filled_up_to_the_next_rung_and_captured_once() -> None:
    setup = Setup()
    for rows in (3, 4, 3, 2, 1, 8, 5):
        setup.step(range(rows))
    assert setup.counts == (4, 7)
    assert set(setup.model.rows) == {1, 2, 4, 8}


def test_each_step_reads_what_its_slots_sampled_last_also_the_one_that_is_captured() -> None:
    setup = Setup()
    setup.last_token[:] = torch.arange(SLOTS + 1)
    assert setup.tokens([5, 2, 7]) == [20, 14, 24]
    assert setup.tokens([5, 7, 2]) == [35, 41, 26]
    expected = list(range(SLOTS))
    expected[2], expected[5], expected[7] = 26, 35, 41
    assert setup.last_token[:-1].tolist() == expected, "rows that fill a step up leave nothing"


def test_ids_of_the_host_go_first() -> None:
    setup = Setup()
    setup.last_token[:] = 1
    assert setup.tokens([1], known=40) == [51]


@pytest.mark.parametrize("sampling", [[0, 2], [1], []])
def test_rows_that_sample_nothing_leave_no_token(sampling: list[int]) -> None:
    setup = Setup()
    setup.last_token[:] = 3
    decoded = setup.step([0, 1, 2], sampling=sampling)
    assert decoded is not None
    assert decoded.tokens is not None
    assert decoded.logits is not None
    assert decoded.tokens.tolist() == [13 + row for row in sampling]
    assert decoded.read.tolist() == [3] * len(sampling)
    assert decoded.logits.argmax(-1).tolist() == decoded.tokens.tolist()
    assert setup.last_token[:3].tolist() == [13 + row if row in sampling else 3 for row in range(3)]


def test_tokens_are_drawn_by_each_rows_own_numbers() -> None:
    setup, draws = Setup(), [DRAWN._replace(key=key) for key in (1, 1 << 40, 77)]
    draws[1] = GREEDY
    decoded = setup.step([0, 1, 2], draws=draws)
    assert decoded is not None
    assert decoded.tokens is not None
    assert decoded.logits is not None
    assert torch.equal(decoded.tokens, TorchSampling().choose(decoded.logits, draws, may_ban=False))


def test_where_sampling_cannot_be_captured_the_logits_are() -> None:
    decoded = Setup(sampling=TorchSampling()).step([0, 1], known=4)
    assert decoded is not None
    assert decoded.tokens is None
    assert decoded.logits is not None
    assert decoded.logits.argmax(-1).tolist() == [14, 15]


@pytest.mark.parametrize("step", [{"slots": range(9)}, {"slots": [1], "key": None}], ids=["too many rows", "a prompt"])
def test_other_steps_are_not_computed(step: dict[str, Any]) -> None:
    setup = Setup()
    assert setup.step(**step) is None
    assert setup.counts == (0, 0)
    assert setup.model.rows == []


def test_graphs_are_captured_again_when_a_step_needs_other_memory(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    caplog.set_level("INFO")
    for key in ("small", "small", "large", "large"):
        setup.step([0, 1], key=key)
        setup.step([0], key=key)
    assert setup.counts == (4, 8)
    assert "2 graphs are captured again" in caplog.text


def test_what_cannot_be_captured_is_left_to_others_with_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(fails=True)
    assert [setup.step([0, 1]) for _ in range(3)] == [None] * 3
    assert setup.counts == (0, 0)
    assert setup.graphs.rungs == ()
    assert not setup.last_token[:-1].any()
    assert caplog.text.count("cannot be captured: operation not permitted") == 1


def test_rungs_for_which_memory_runs_out_are_dropped_and_the_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(most_rows=4)
    found = [setup.step(range(rows)) is not None for rows in (8, 4, 2, 1, 7, 3)]  # as the warm-up does, then requests
    assert found == [False, True, True, True, False, True]
    assert setup.graphs.rungs == (1, 2, 4)
    assert setup.counts == (3, 4)
    assert caplog.text.count("no memory for a graph of 8 rows") == 1


def test_steps_whose_own_graph_had_no_memory_take_the_next_larger_one() -> None:
    setup = Setup()
    setup.step(range(8))
    setup.capture.most_rows = 0
    assert setup.step(range(3)) is None
    assert setup.graphs.rungs == (1, 2, 8)
    assert setup.step(range(4)) is not None
    assert setup.counts == (1, 2)


@pytest.mark.parametrize(("others", "rungs"), [(1, (1, 4, 8)), (2, ())], ids=["no memory", "failed"])
def test_a_graph_that_another_rank_has_not_got_is_not_used(others: int, rungs: tuple[int, ...]) -> None:
    class Ranks(TpGroup):
        def worst(self, numbers: Sequence[int]) -> list[int]:
            return [max(others, *numbers)]

    setup = Setup(tp=Ranks())
    assert setup.step([0, 1]) is None
    assert setup.graphs.rungs == rungs
    assert setup.counts == (1, 0)


def test_a_run_before_the_capture_that_fails_costs_one_rank_the_graph() -> None:
    setup = Setup(runs=False)
    assert setup.step([0, 1]) is None
    assert setup.graphs.rungs == (1, 4, 8)


def test_a_run_before_the_capture_that_fails_ends_a_rank_whose_others_wait_on_their_devices() -> None:
    class Ranks(TpGroup):
        def worst(self, numbers: Sequence[int]) -> list[int]:
            raise AssertionError("the others' hosts do not answer")

    with pytest.raises(torch.OutOfMemoryError):
        Setup(tp=Ranks(0, 2), runs=False).step([0, 1])
