"""Before the first request a rank times a chunk of a prompt, without one that takes too long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mmserve.messages.step import UNKNOWN_TIMES, StepPlan, StepResult
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.worker.warm_up import WarmUp
from tests.fakes.models.checkpoints import make_llama
from tests.fakes.ranks.engine import make_runner
from tests.fakes.ranks.ranks_in_threads import RanksInThreads


def timed(seconds_of: Callable[[int], float], sizes: list[int]) -> WarmUp:
    """A warm-up of ranks that take so long for a number of tokens; notes the sizes of their steps."""

    def step(plan: StepPlan) -> StepResult:
        num_tokens = sum(each.num_tokens for each in plan.steps)
        sizes.extend([num_tokens] if plan.steps else [])
        blocks = [block for each in plan.steps for block in each.new_blocks]
        assert len(blocks) * 16 >= num_tokens
        return StepResult(step_id=0, tokens=(), forward_s=seconds_of(num_tokens))

    return WarmUp(step, TpGroup(), torch.device("cpu"), 16)


@pytest.mark.parametrize(
    ("token_s", "max_tokens", "sizes"),
    [(1e-5, 2000, [16, 64, 256, 1024, 2000]), (1e-3, 2000, [16, 64]), (1.0, 2000, [16]), (1e-5, 9, [9])],
)
def test_chunks_grow_until_one_takes_a_quarter_of_the_time(token_s: float, max_tokens: int, sizes: list[int]) -> None:
    computed: list[int] = []
    chunk = timed(lambda num_tokens: num_tokens * token_s, computed).time_chunk(max_tokens, 0.14)
    assert computed == [size for size in sizes for _ in range(2)]
    assert chunk.num_tokens == sizes[-1]
    assert chunk.seconds == pytest.approx(sizes[-1] * token_s)


def test_a_runner_times_a_real_chunk(tmp_path: Path) -> None:
    runner = make_runner(make_llama(tmp_path), max_model_len=48)
    chunk = runner.warm_up()
    assert 16 <= chunk.num_tokens <= 47
    assert chunk.seconds > 0


@pytest.mark.parametrize("num_tokens", [16, 400])
def test_the_draft_model_is_timed_with_a_prompt_and_without(num_tokens: int) -> None:
    sizes: list[int] = []
    longest = min(num_tokens, 255) - 1

    def seconds_of_draft(plan: StepPlan) -> float:
        (step,) = plan.steps
        return 0.002 if step.start == 1 else (longest + 1) * 0.0001

    def step(plan: StepPlan) -> StepResult:
        sizes.extend(each.num_prompt_tokens for each in plan.new)
        drafts = any(each.num_proposed for each in plan.steps)
        return StepResult(step_id=0, tokens=(), forward_s=0.1, draft_s=seconds_of_draft(plan) if drafts else 0.0)

    times = WarmUp(step, TpGroup(), torch.device("cpu"), 16).time_draft(num_tokens)
    assert (times.pass_s, times.row_s) == pytest.approx((0.002, 0.0001))
    assert sizes == [1, 1, longest, longest]


def test_a_runner_times_a_real_draft_model(tmp_path: Path) -> None:
    model = make_llama(tmp_path)
    plain = make_runner(model, max_model_len=48).warm_up()
    assert plain.draft == UNKNOWN_TIMES
    chunk = make_runner(model, max_model_len=48, draft=model).warm_up()
    assert min(chunk.draft.pass_s, chunk.draft.row_s) > 0


def test_several_ranks_time_the_same_chunks(tmp_path: Path) -> None:
    """A rank that stopped at another size than the others would wait for them."""
    ranks = RanksInThreads(make_llama(tmp_path))
    first, second = ranks.on_all(lambda runner: runner.warm_up())
    ranks.close()
    assert first == second
