from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.codec import Codec
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.lockstep import LockstepReceiver, LockstepSender
from mmserve.messages.step import RankInbound, RankOutbound, RankReady, StepPlan, StepResult
from tests.fakes.ranks.engine import deployment

_RESULT_WITHIN_S = 60


@dataclass
class Ranks:
    """Running rank processes, seen from the router."""

    processes: list[subprocess.Popen[str]]
    senders: list[LockstepSender[StepPlan]]
    inbox: LockstepReceiver[Any]
    arena: Arena
    ready: RankReady
    details: list[dict[str, Any]]
    num_sent: int = 0

    @property
    def block_tokens(self) -> int:
        return self.ready.block_tokens

    def send(self, plan: StepPlan) -> None:
        """Sends a plan, with the step id that the ranks require: several routers use the ranks, one after the other."""
        self.num_sent += 1
        plan = msgspec.structs.replace(plan, step_id=self.num_sent)
        for sender in self.senders:
            sender.send(plan)

    def step(self, plan: StepPlan) -> StepResult:
        self.send(plan)
        [result] = self.inbox.drain(block=True, timeout_s=_RESULT_WITHIN_S)
        assert isinstance(result, StepResult)
        return result


StartRanks = Callable[[Path, int], Any]


@pytest.fixture(scope="session")
def start_ranks(tmp_path_factory: pytest.TempPathFactory) -> StartRanks:
    """start_ranks(checkpoint, tp): a context of running ranks."""

    @contextmanager
    def start(directory: Path, tp: int) -> Iterator[Ranks]:
        run_dir = tmp_path_factory.mktemp("r")
        made = deployment(directory, run_dir=str(run_dir), config=Config(model=str(directory), tp=tp, max_num_seqs=8))
        codec: Codec[Deployment] = Codec(Deployment)
        file = run_dir / "deployment"
        file.write_bytes(codec.encode(made))
        endpoints = Endpoints(run_dir)
        with ExitStack() as stack:
            arena = stack.enter_context(closing(Arena.create(made.arena_nbytes)))
            inbox: LockstepReceiver[Any] = stack.enter_context(
                closing(LockstepReceiver(endpoints.rank_results, RankOutbound))
            )
            processes = [stack.enter_context(_rank(file, rank, arena.fd)) for rank in range(tp)]
            senders = [
                stack.enter_context(closing(LockstepSender[StepPlan](endpoints.rank(rank), RankInbound)))
                for rank in range(tp)
            ]
            details = [json.loads(process.stdout.readline()) for process in processes]  # type: ignore[union-attr]
            [ready] = inbox.drain(block=True, timeout_s=_RESULT_WITHIN_S)
            yield Ranks(processes, senders, inbox, arena, ready, details)

    return start


@contextmanager
def _rank(file: Path, rank: int, arena_fd: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.integration.model_backend.rank_main", str(file), str(rank), str(arena_fd)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, pass_fds=(arena_fd,), stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
