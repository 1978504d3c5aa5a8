"""Tests and times the ways of adding up at the start of ranks, and takes the fastest for each size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from mmserve.model_backend.distributed import Collectives, TpGroup
from mmserve.model_backend.platforms.cuda.sums.choice import NCCL, Choice, choose, described, way_of
from mmserve.model_backend.platforms.cuda.sums.ways import Way, fits, symmetric_ways
from mmserve.model_backend.rank_links import Reduction
from mmserve.runtime.errors import shortened

SIZES = tuple(1 << power for power in range(13, 23))
"""Bytes: from a row of a small model to a step of 512 rows of a large one."""
_TESTED_NBYTES = 1 << 16
_WARM_UPS, _CALLS = 5, 20
_NS = 1e9
Timer = Callable[[Callable[[], object]], float]
"""Seconds of one call."""

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
    """The ways that add up rightly; and bytes -> way -> seconds of one sum on the slowest rank, with NCCL."""
    others = tp.collectives
    assert others is not None
    working = {name: way for name, way in ways.items() if _adds_up(tp, others, name, way, dtype, device)}
    by_nccl: dict[str, Way] = {NCCL: lambda tensor: others.all_reduce(tensor, "sum")}
    timed = by_nccl | working
    return working, {nbytes: _seconds(tp, timed, nbytes, dtype, device, timer) for nbytes in SIZES}


def _adds_up(tp: TpGroup, others: Collectives, name: str, way: Way, dtype: torch.dtype, device: torch.device) -> bool:
    """True if it does so on all ranks, twice, as NCCL does."""
    generator = torch.Generator(device).manual_seed(tp.rank)
    numbers = torch.randn(_TESTED_NBYTES // dtype.itemsize, device=device, generator=generator).to(dtype)
    expected, problem = numbers.clone(), ""
    others.all_reduce(expected, "sum")
    try:
        for _ in range(2):
            found = numbers.clone()
            way(found)
            if not torch.allclose(found.float(), expected.float(), rtol=2e-2, atol=2e-2):
                problem = "its sums are wrong"
    except RuntimeError as error:
        problem = shortened(" ".join(str(error).split()), 200)
    if not tp.worst([bool(problem)])[0]:
        return True
    logger.warning("ranks do not add up by %s: %s", name, problem or "another rank's log says why")
    return False


def _seconds(
    tp: TpGroup, ways: Mapping[str, Way], nbytes: int, dtype: torch.dtype, device: torch.device, timer: Timer
) -> dict[str, float]:
    """Of the slowest rank, so that all ranks choose alike."""
    tensor = torch.zeros(nbytes // dtype.itemsize, dtype=dtype, device=device)
    own = [timer(lambda way=way: way(tensor)) for way in ways.values()]  # type: ignore[misc]
    return dict(zip(ways, _agreed(tp, own), strict=True))


def _agreed(tp: TpGroup, seconds: Iterable[float]) -> list[float]:
    return [each / _NS for each in tp.worst([round(_NS * each) for each in seconds])]


def timer_of(device: torch.device) -> Timer:
    """Of a GPU."""

    def seconds(work: Callable[[], object]) -> float:
        for _ in range(_WARM_UPS):
            work()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record(torch.cuda.current_stream(device))
        for _ in range(_CALLS):
            work()
        end.record(torch.cuda.current_stream(device))
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / _CALLS

    return seconds
