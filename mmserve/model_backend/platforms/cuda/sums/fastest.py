"""Tests and times the ways of adding up at the start of ranks, and takes the fastest for each size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from mmserve.model_backend.distributed import Collectives, TpGroup
from mmserve.model_backend.platforms.cuda.sums.choice import NCCL, Choice, choose, described, way_of
from mmserve.model_backend.platforms.cuda.sums.ways import Way, fits, symmetric_ways
from mmserve.model_backend.rank_links import Reduction
from mmserve.runtime.errors import StartupError, shortened

SIZES = tuple(1 << power for power in range(13, 23))
"""Bytes: from a row of a small model to a step of 512 rows of a large one."""
_TESTED_NBYTES = 1 << 16
_WARM_UPS, _CALLS = 5, 20
_NS = 1e9
Timer = Callable[[Callable[[], object]], Callable[[], float]]
"""Launches calls, and returns what waits for them and tells the seconds of one."""

logger = logging.getLogger(__name__)


class ChosenSums:
    """See ``distributed.Collectives``: those of ``others``, but for sums of tensors of ``dtype``."""

    def __init__(
        self, others: Collectives, ways: Mapping[str, Way], choices: Sequence[Choice], dtype: torch.dtype, ranks: int
    ) -> None:
        self._others, self._ways, self._choices = others, ways, choices
        self._dtype, self._ranks = dtype, ranks
        self.broadcast, self.gather = others.broadcast, others.gather

    def all_reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        way = NCCL
        if op == "sum" and tensor.dtype is self._dtype and fits(tensor, self._ranks):
            way = way_of(self._choices, tensor.nbytes)
        if way == NCCL:
            self._others.all_reduce(tensor, op)
        else:
            self._ways[way](tensor)


def fastest_sums(tp: TpGroup, dtype: torch.dtype, device: torch.device) -> TpGroup:
    """The same ranks, which have GPUs of their own on this machine. All ranks call it together."""
    assert tp.collectives is not None
    ways: dict[str, Way] = {}
    problem = ""
    try:
        ways = symmetric_ways(dist.group.WORLD, dtype, device, SIZES[-1])  # type: ignore[arg-type]
    except (RuntimeError, AttributeError, ImportError) as error:
        problem = f": {type(error).__name__}: {shortened(' '.join(str(error).split()), 200)}"
    if tp.worst([not ways])[0]:
        logger.info("ranks add up by NCCL, because symmetric memory does not work here%s", problem)
        return tp
    found = chosen_sums(tp, ways, dtype, device, timer_of(device))
    return tp if found is None else replace(tp, collectives=found)


def chosen_sums(
    tp: TpGroup, ways: Mapping[str, Way], dtype: torch.dtype, device: torch.device, timer: Timer
) -> ChosenSums | None:
    """None: NCCL is best for all sizes. All ranks have the same ways."""
    assert tp.collectives is not None
    working, seconds = measured(tp, ways, dtype, device, timer)
    choices = choose(seconds)
    logger.info("ranks add up by %s", described(choices))
    for nbytes, times in seconds.items():
        logger.debug("%d bytes: %s", nbytes, ", ".join(f"{way} {1e6 * each:.1f} us" for way, each in times.items()))
    if all(choice.way == NCCL for choice in choices):
        return None
    return ChosenSums(tp.collectives, working, choices, dtype, tp.size)


def measured(
    tp: TpGroup, ways: Mapping[str, Way], dtype: torch.dtype, device: torch.device, timer: Timer
) -> tuple[dict[str, Way], dict[int, dict[str, float]]]:
    """The ways that add up rightly; and bytes -> way -> seconds of one sum on the slowest rank, with NCCL.

    Raises StartupError if some ranks alone could launch a way.
    """
    others = tp.collectives
    assert others is not None
    working = {name: way for name, way in ways.items() if _adds_up(tp, others, name, way, dtype, device)}
    by_nccl: dict[str, Way] = {NCCL: lambda tensor: others.all_reduce(tensor, "sum")}
    seconds = {}
    for nbytes in SIZES:
        seconds[nbytes] = _seconds(tp, by_nccl | working, nbytes, dtype, device, timer)
        working = {name: way for name, way in working.items() if name in seconds[nbytes]}
    kept = by_nccl | working
    return working, {nbytes: {name: times[name] for name in kept} for nbytes, times in seconds.items()}


def _adds_up(tp: TpGroup, others: Collectives, name: str, way: Way, dtype: torch.dtype, device: torch.device) -> bool:
    """True if it does so on all ranks, twice, as NCCL does."""
    generator = torch.Generator(device).manual_seed(tp.rank)
    numbers = torch.randn(_TESTED_NBYTES // dtype.itemsize, device=device, generator=generator).to(dtype)
    expected, found = numbers.clone(), [numbers.clone() for _ in range(2)]
    others.all_reduce(expected, "sum")

    def launch() -> None:
        for each in found:
            way(each)

    if not _launched(tp, name, launch):
        return False
    wrong = not all(torch.allclose(each.float(), expected.float(), rtol=2e-2, atol=2e-2) for each in found)
    if not tp.worst([wrong])[0]:
        return True
    logger.warning("ranks do not add up by %s: its sums are wrong%s", name, "" if wrong else " on another rank")
    return False


def _seconds(
    tp: TpGroup, ways: Mapping[str, Way], nbytes: int, dtype: torch.dtype, device: torch.device, timer: Timer
) -> dict[str, float]:
    """Of the slowest rank, so that all ranks choose alike. Without ways that fail."""
    tensor = torch.zeros(nbytes // dtype.itemsize, dtype=dtype, device=device)
    found = {}
    for name, way in ways.items():
        waits: list[Callable[[], float]] = []

        def launch(way: Way = way, waits: list[Callable[[], float]] = waits) -> None:
            waits.append(timer(lambda: way(tensor)))

        if _launched(tp, name, launch):
            (found[name],) = (each / _NS for each in tp.worst([round(_NS * waits[0]())]))
    return found


def _launched(tp: TpGroup, name: str, work: Callable[[], object]) -> bool:
    """Whether all ranks could launch it; they agree before any waits for its GPU.

    Raises StartupError on all ranks if some could: their GPUs wait for those of the others, for ever.
    """
    problem = ""
    try:
        work()
    except RuntimeError as error:
        problem = shortened(" ".join(str(error).split()), 200)
    failed, fine = tp.worst([bool(problem), not problem])
    if not failed:
        return True
    logger.warning("ranks do not add up by %s: %s", name, problem or "another rank's log says why")
    if fine:
        raise StartupError(f"adding up by {name} fails on some ranks alone, and the others wait: use --rank-sums nccl")
    return False


def timer_of(device: torch.device) -> Timer:
    """Of a GPU."""

    def launched(work: Callable[[], object]) -> Callable[[], float]:
        for _ in range(_WARM_UPS):
            work()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record(torch.cuda.current_stream(device))
        for _ in range(_CALLS):
            work()
        end.record(torch.cuda.current_stream(device))

        def seconds() -> float:
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3 / _CALLS

        return seconds

    return launched
