"""Two ranks whose devices compute late, each in a process: their collectives are gloo's, and run in the devices' queues
as NCCL's do on GPUs. Their hosts exchange errors through sockets, as on one machine with GPUs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.utils._python_dispatch import _disable_current_modes

from mmserve.ipc.links.codec import Codec
from mmserve.messages.step import StepPlan, StepResult
from mmserve.model_backend import distributed
from mmserve.model_backend.distributed import Collectives, TpGroup
from mmserve.model_backend.rank_links import Reduction, connect
from mmserve.model_backend.worker.in_flight import InFlight
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.devices.late_device import LateDevice, LatePlatform, LateTensor
from tests.fakes.ranks.engine import BLOCK_TOKENS, deployment

SIZE = 2
FAILING = 2**40 + 666
"""While a sequence has this seed, rank 0 cannot sample."""
_ANSWER_WITHIN_S = 60.0
_PLANS: Codec[StepPlan] = Codec(StepPlan)
_RESULTS: Codec[StepResult] = Codec(StepResult)
_COLLECT = b"collect"


class LateCollectives:
    """See ``distributed.Collectives``: those of ``made``, when their turn in the queue comes."""

    def __init__(self, made: Collectives, queue: LateDevice) -> None:
        self._made, self._queue = made, queue

    def all_reduce(self, tensor: Any, op: Reduction) -> None:
        self._put(lambda: self._made.all_reduce(tensor.numbers, op))

    def broadcast(self, tensor: Any) -> None:
        self._put(lambda: self._made.broadcast(tensor.numbers))

    def gather(self, tensor: Any) -> Any:
        with _disable_current_modes():
            parts = [LateTensor(self._queue, torch.empty_like(tensor.shape_only)) for _ in range(SIZE)]

        def gather() -> None:
            for part, numbers in zip(parts, self._made.gather(tensor.numbers) or (), strict=False):
                part.numbers = numbers

        self._put(gather)
        return parts if distributed.dist.get_rank() == 0 else None

    def _put(self, work: Callable[[], object]) -> None:
        def alone() -> None:
            with _disable_current_modes():
                work()

        self._queue.put(alone)
        if self._queue.loading:
            self._queue.finish()


class Hosts:
    """Links between hosts. The device computes while its host waits for another one."""

    def __init__(self, made: Collectives, queue: LateDevice) -> None:
        self._made, self._queue = made, queue

    def all_reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        self._queue.compute_meanwhile()
        self._made.all_reduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor) -> None:
        if distributed.dist.get_rank():
            self._queue.compute_meanwhile()
        self._made.broadcast(tensor)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor] | None:
        raise NotImplementedError


class LateRanks:
    """Both ranks, as one rank is driven: plans are launched, and collected in their order."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, links: list[Connection], processes: list[BaseProcess]) -> None:
        self._links, self.processes = links, processes
        self.waits: list[int] = []
        """How often the host of some rank waited for its device, at each launch."""

    def launch(self, plan: StepPlan) -> Any:
        self.waits.append(max(int(answer) for answer in self._asked(_PLANS.encode(plan))))
        return plan

    def collect(self, _: Any) -> StepResult:
        return _RESULTS.decode(self._asked(_COLLECT)[0])

    def step(self, plan: StepPlan) -> StepResult:
        return self.collect(self.launch(plan))

    def _asked(self, message: bytes) -> list[bytes]:
        """Raises EOFError if a rank has ended, TimeoutError if one does not answer."""
        for link in self._links:
            link.send_bytes(message)
        answers = []
        for link in self._links:
            if not link.poll(_ANSWER_WITHIN_S):
                raise TimeoutError("a rank does not answer")
            answers.append(link.recv_bytes())
        return answers


@contextmanager
def late_ranks(directory: Path, folder: Path, **changes: Any) -> Iterator[LateRanks]:
    """``folder``: empty, for where the ranks meet. ``changes``: of the deployment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    links: list[Connection] = []
    processes: list[BaseProcess] = []
    for rank in range(SIZE):
        ours, theirs = context.Pipe()
        process = context.Process(target=_compute, args=(rank, directory, folder, changes, theirs), daemon=True)
        process.start()
        theirs.close()
        links.append(ours)
        processes.append(process)
    try:
        yield LateRanks(links, processes)
    finally:
        for link in links:
            link.close()
        for process in processes:
            process.join(_ANSWER_WITHIN_S)
            process.close()


def _compute(rank: int, directory: Path, folder: Path, changes: dict[str, Any], link: Connection) -> None:
    """Until the other end of ``link`` is closed."""
    torch.set_num_threads(1)
    gloo = distributed.Meeting(FileStore(str(folder / "gloo"), SIZE))
    with ExitStack() as stack:
        tp = stack.enter_context(distributed.join(rank, SIZE, gloo, torch.device("cpu")))
        links = stack.enter_context(connect(rank, SIZE, FileStore(str(folder / "links"), SIZE), folder))
        device = stack.enter_context(LateDevice())
        assert tp.collectives is not None
        tp = TpGroup(rank, SIZE, LateCollectives(tp.collectives, device), Hosts(links, device), on_host=False)
        made = deployment(directory, **changes)
        runner = ModelRunner(made, tp, None, LatePlatform(device), lambda done, total, unit: None)
        device.loading, device.among_others = False, True
        if rank == 0:
            _fail_sometimes(runner)
        _serve(runner, device, link)


def _serve(runner: ModelRunner, device: LateDevice, link: Connection) -> None:
    launched: list[InFlight] = []
    while True:
        try:
            message = link.recv_bytes()
        except EOFError:
            return
        if message == _COLLECT:
            link.send_bytes(_RESULTS.encode(runner.collect(launched.pop(0))))
            continue
        before = device.num_waits
        launched.append(runner.launch(_PLANS.decode(message)))
        link.send_bytes(str(device.num_waits - before).encode())


def _fail_sometimes(runner: ModelRunner) -> None:
    sampler: Any = runner._sampling._sampler
    sample = sampler.sample

    def failing(logits: torch.Tensor, rows: Any) -> torch.Tensor:
        if any(row.sampling.seed == FAILING for row in rows):
            raise RuntimeError("as it happens")
        made: torch.Tensor = sample(logits, rows)
        return made

    sampler.sample = failing
