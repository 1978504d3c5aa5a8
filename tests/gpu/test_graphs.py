"""On a GPU decode steps are captured and replayed, and write the tokens of steps that are launched kernel by kernel.

Skipped without a GPU, as in CI; unit/model_backend/platforms/cuda/graphs replays recorded steps on a CPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmserve.config.config import Config
from mmserve.config.resolved.graph_ladder import ladder
from mmserve.model_backend.platforms.device import platform_for
from tests.fakes.models.checkpoints import make_text
from tests.fakes.ranks.engine import Driver, make_runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="needs a CUDA device; on a CPU: unit/model_backend/platforms/cuda/graphs",
    ),
]


def runner_and_answers(directory: Path, *, enforce_eager: bool) -> tuple[object, list[list[int]]]:
    """After a warm-up, as at the start of a server: of sequences that end one after another."""
    config = Config(model=str(directory), max_num_seqs=6, enforce_eager=enforce_eager)
    runner = make_runner(directory, platform=platform_for("cuda", "float32"), device="cuda", config=config)
    runner.warm_up()
    driver = Driver(runner)
    prompts = [[3 + (7 * i + 5 * k) % 90 for k in range(length)] for i, length in enumerate((37, 5, 30, 9, 2))]
    running = [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)]
    while driver.running:
        driver.step()
        for sequence in [each for each in driver.running if len(each.output) >= 4 + 3 * each.slot]:
            driver.drop(sequence)
    return runner._graphs, [sequence.output for sequence in running]


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_tokens_are_those_of_steps_that_are_not_captured(tmp_path: Path, family: str) -> None:
    from mmserve.model_backend.platforms.cuda.graphs.decode import CapturedDecodes

    directory = make_text(tmp_path, family, head_dim=16)
    replaying, found = runner_and_answers(directory, enforce_eager=False)
    launching, expected = runner_and_answers(directory, enforce_eager=True)
    assert isinstance(replaying, CapturedDecodes)
    assert launching is None
    assert tuple(replaying.rungs) == ladder(6), "no capture has failed"
    assert found == expected
