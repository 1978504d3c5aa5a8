"""Layers whose products leave the residual to the next norm answer as those that add it themselves, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmserve.config.config import Config
from mmserve.model_backend.platforms.reference import PlainLinear, TorchPlatform
from mmserve.model_backend.platforms.torch_ops import TorchOps
from tests.fakes.models.checkpoints import make_text
from tests.fakes.ranks.engine import Driver, make_runner

CPU = torch.device("cpu")


class Waiting(PlainLinear):
    """As products in FP8."""

    adds_residual = False

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        assert residual is None, "the norm adds it"
        return super().apply(x, bias)


class AddingNorms(TorchOps):
    """As kernels of a GPU, which add up in one pass with the norm."""

    def __init__(self) -> None:
        self.num_added = 0

    @property
    def adds_in_norms(self) -> bool:
        return True

    def add_normed_(
        self, hidden: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, then: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        self.num_added += 1
        return super().add_normed_(hidden, x, weight, then, eps)


class WaitingPlatform(TorchPlatform):
    plain_linear = Waiting


class AddingPlatform(TorchPlatform):
    def __init__(self) -> None:
        super().__init__(CPU, torch.float32)
        self.made = AddingNorms()

    def ops(self) -> TorchOps:
        return self.made


def answers(directory: Path, platform: TorchPlatform) -> list[list[int]]:
    driver = Driver(make_runner(directory, platform=platform, config=Config(model=str(directory), max_num_seqs=8)), 20)
    prompts = [[3 + (7 * i + 5 * k) % 90 for k in range(length)] for i, length in enumerate((37, 5))]
    running = [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)]
    driver.run(6)
    assert not driver.failures
    return [sequence.output for sequence in running]


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "qwen3_moe"])
def test_answers_are_the_same(tmp_path: Path, family: str) -> None:
    directory = make_text(tmp_path, family)
    found = answers(directory, WaitingPlatform(CPU, torch.float32))
    assert found == answers(directory, TorchPlatform(CPU, torch.float32))
    assert len(set(found[0])) > 1


def test_experts_that_are_computed_one_by_one_leave_the_residual_to_the_norm_behind_them(tmp_path: Path) -> None:
    directory, platform = make_text(tmp_path, "qwen3_moe"), AddingPlatform()
    assert answers(directory, platform) == answers(directory, TorchPlatform(CPU, torch.float32))
    assert platform.made.num_added
