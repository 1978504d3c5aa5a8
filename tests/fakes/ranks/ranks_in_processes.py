"""Several tensor-parallel ranks of one model after the other, each in a process of its own.

The processes are forked from one that has imported the model's code once: each start of an interpreter takes seconds
for that.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from mmserve.ipc.arena import Arena
from mmserve.ipc.links.codec import Codec
from mmserve.messages.step import StepPlan, StepResult
from mmserve.model_backend import distributed
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.ranks.engine import BLOCK_TOKENS, deployment

_RESULT_WITHIN_S = 60.0
_PLANS: Codec[StepPlan] = Codec(StepPlan)
_RESULTS: Codec[StepResult] = Codec(StepResult)


class RanksInProcesses:
    """An ``Engine`` for fakes.engine.Driver."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, links: list[Connection]) -> None:
        self._links = links

    def step(self, plan: StepPlan) -> StepResult:
        """Rank 0's result. Raises EOFError if a rank has died, TimeoutError if it does not answer."""
        for link in self._links:
            link.send_bytes(_PLANS.encode(plan))
        results = []
        for link in self._links:
            if not link.poll(_RESULT_WITHIN_S):
                raise TimeoutError("a rank does not answer")
            results.append(_RESULTS.decode(link.recv_bytes()))
        return results[0]


@contextmanager
def ranks_in_processes(directory: Path, arena: Arena, size: int, store: Path) -> Iterator[RanksInProcesses]:
    """``size`` ranks that compute the same plans. They meet in the file ``store``, which does not exist yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    links, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        arena_file = f"/proc/{os.getpid()}/fd/{arena.fd}"
        process = context.Process(target=_compute, args=(rank, size, directory, store, arena_file, theirs), daemon=True)
        process.start()
        theirs.close()
        links.append(ours)
        processes.append(process)
    try:
        yield RanksInProcesses(links)
    finally:
        for link in links:
            link.close()
        for process in processes:
            process.join(_RESULT_WITHIN_S)
            process.close()


def _compute(rank: int, size: int, directory: Path, store: Path, arena_file: str, link: Connection) -> None:
    """Until the other end of ``link`` is closed."""
    torch.set_num_threads(1)
    made, arena = deployment(directory), Arena.attach(os.open(arena_file, os.O_RDWR))
    meeting = distributed.at_file(store, size, store.parent)
    with distributed.join(rank, size, meeting, torch.device("cpu")) as tp:
        runner = ModelRunner(made, tp, arena, platform_for("cpu", made.dtype), lambda done, total, unit: None)
        while True:
            try:
                plan = _PLANS.decode(link.recv_bytes())
            except EOFError:
                return
            link.send_bytes(_RESULTS.encode(runner.step(plan)))
