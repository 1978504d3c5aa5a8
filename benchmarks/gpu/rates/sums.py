"""Times of one sum over ranks, by size and way. On GPUs each rank is a process; on a CPU two threads have sockets."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore

from mmserve.model_backend.distributed import TpGroup, at_file, join
from mmserve.model_backend.platforms.cuda.sums.fastest import SIZES, measured, timer_of
from mmserve.model_backend.platforms.cuda.sums.ways import symmetric_ways
from mmserve.model_backend.rank_links import connect

_MOST_RANKS = 8
_WITHIN_S = 20.0
Seconds = dict[int, dict[str, float]]


def sums_of_gpus(num_gpus: int) -> Seconds:
    """Of two, four or eight ranks, as many as there are GPUs for. Raises queue.Empty if they do not answer."""
    ranks = min(_MOST_RANKS, 1 << (num_gpus.bit_length() - 1))
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_on_gpu, args=(rank, ranks, folder, found)) for rank in range(ranks)]
        for process in processes:
            process.start()
        try:
            seconds: Seconds = found.get(timeout=_WITHIN_S)
        finally:
            for process in processes:
                process.join(_WITHIN_S / 4)
                process.kill()
    return seconds


def _on_gpu(rank: int, ranks: int, folder: str, found: Any) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    with join(rank, ranks, at_file(Path(folder, "store"), ranks, Path(folder)), device) as tp:
        ways = symmetric_ways(torch.distributed.group.WORLD, torch.bfloat16, device, SIZES[-1])
        seconds = measured(tp, ways, torch.bfloat16, device, timer_of(device))[1]
        if rank == 0:
            found.put(seconds)


def sums_of_threads(ranks: int = 2) -> Seconds:
    """By the sockets between ranks of one machine, under the name that GPUs have for theirs."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(ranks) as threads:
        first, *_ = threads.map(lambda rank: _in_thread(rank, ranks, Path(folder)), range(ranks))
        return first


def _in_thread(rank: int, ranks: int, folder: Path) -> Seconds:
    with connect(rank, ranks, FileStore(str(folder / "store"), ranks), folder) as links:
        tp = TpGroup(rank, ranks, links, links)
        return measured(tp, {}, torch.float32, torch.device("cpu"), _wall_clock)[1]


def _wall_clock(work: Callable[[], object]) -> Callable[[], float]:
    """A CPU has computed when it returns."""
    started_s = time.perf_counter()
    work()
    seconds = time.perf_counter() - started_s
    return lambda: seconds
