"""Several tensor-parallel ranks in one process, each in a thread of its own.

A collective that not all ranks enter breaks the barrier after a minute, and every rank raises BrokenBarrierError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmserve.ipc.arena import Arena
from mmserve.messages.step import StepPlan, StepResult
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.ranks.engine import deployment

_DEADLOCK_S = 60.0
"""Longer than a rank may have to wait for another on a machine that is busy."""


@dataclass
class _Meeting:
    """Where the ranks exchange tensors."""

    size: int
    values: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=_DEADLOCK_S)

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        """All ranks' tensors, by rank."""
        self.values[rank] = tensor.clone()
        self.barrier.wait()
        values = [self.values[each] for each in range(self.size)]
        self.barrier.wait()
        return values


@dataclass(frozen=True)
class ThreadGroup(TpGroup):
    """See TpGroup."""

    meeting: _Meeting = field(default_factory=lambda: _Meeting(1))

    def _reduced(self, tensor: torch.Tensor, how: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return tensor.copy_(how(torch.stack(self.meeting.exchange(self.rank, tensor))))

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._reduced(tensor, lambda all_ranks: all_ranks.sum(dim=0))

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._reduced(tensor, lambda all_ranks: all_ranks.amax(dim=0))

    def worst(self, numbers: Sequence[int]) -> list[int]:
        return self.max(torch.tensor(numbers)).tolist()

    def told(self, number: int) -> int:
        return int(self.broadcast(torch.tensor(number)))

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._reduced(tensor, lambda all_ranks: all_ranks[0])

    def gather_columns(self, shard: torch.Tensor) -> torch.Tensor | None:
        parts = self.meeting.exchange(self.rank, shard)
        return torch.cat(parts, dim=1) if self.rank == 0 else None


class RanksInThreads:
    """``size`` ModelRunners that compute the same plans. An ``Engine`` for fakes.engine.Driver."""

    def __init__(self, directory: Path, arena: Arena | None = None, size: int = 2, **changes: Any) -> None:
        made, meeting = deployment(directory, **changes), _Meeting(size)
        self._pool = ThreadPoolExecutor(size)

        def start(rank: int) -> ModelRunner:
            group = ThreadGroup(rank, size, meeting=meeting)
            return ModelRunner(made, group, arena, platform_for("cpu", made.dtype), lambda done, total, unit: None)

        self.runners = list(self._pool.map(start, range(size)))

    @property
    def block_tokens(self) -> int:
        return self.runners[0].block_tokens

    def step(self, plan: StepPlan) -> StepResult:
        """Rank 0's result. Raises what a rank raises."""
        return self.on_all(lambda runner: runner.step(plan))[0]

    def on_all(self, function: Callable[[ModelRunner], Any]) -> list[Any]:
        """The function's results, called for each rank in its own thread."""
        return list(self._pool.map(function, self.runners))

    def close(self) -> None:
        self._pool.shutdown()
