"""Collectives between two real processes, for each dtype of weights and token ids; and what their hosts exchange."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from mmserve.model_backend.distributed import Meeting, TpGroup, _between_hosts, at_file, join

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


def collect(rank: int, directory: str, found: multiprocessing.Queue[list[object]]) -> None:
    """As ranks of one machine, then as ranks of two, which use gloo."""
    here = at_file(Path(directory, "here"), 2, Path(directory))
    apart = Meeting(FileStore(str(Path(directory, "apart")), 2), num_here=1)
    results: list[object] = []
    for meeting in (here, apart):
        with join(rank, 2, meeting, torch.device("cpu")) as tp:
            for dtype in DTYPES:
                local = torch.tensor([[1.0 + rank, 3.0 - rank]]).to(dtype)
                gathered = tp.gather_columns(local)
                results.append(None if gathered is None else gathered.tolist())
                results += [reduce(local.clone()).tolist() for reduce in (tp.sum, tp.max, tp.broadcast)]
            results += [tp.worst([rank, -rank]), tp.told(7 + rank)]
    with join(rank, 2, Meeting(FileStore(str(Path(directory, "again")), 2), num_here=1), torch.device("cpu")):
        for folder in (None, Path(directory)):  # ranks with GPUs have such links beside NCCL
            with _between_hosts(
                rank, 2, Meeting(FileStore(str(Path(directory, "links")), 2), directory=folder)
            ) as host:
                number = torch.tensor([rank + 3])
                host.all_reduce(number, "max")
                results.append(number.tolist())
    found.put([rank, results])


def test_collectives_give_both_ranks_the_same_results(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue[list[object]] = context.Queue()
    processes = [context.Process(target=collect, args=(rank, str(tmp_path), found)) for rank in range(2)]
    for process in processes:
        process.start()
    by_rank = dict(found.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    reduced, told, between = [[[3.0, 5.0]], [[2.0, 3.0]], [[1.0, 3.0]]], [[1, 0], 7], [[4], [4]]
    gathered = ([[1.0, 3.0, 2.0, 2.0]], None)
    for rank in range(2):
        assert by_rank[rank] == ([gathered[rank], *reduced] * len(DTYPES) + told) * 2 + between


def add(rank: int, directory: str, found: multiprocessing.Queue[list[object]]) -> None:
    """Sums of numbers of all sizes, whose order shows in the bits: alone and among others, here and apart."""
    generator = torch.Generator().manual_seed(rank)
    own = torch.randn(1000, generator=generator) * 10.0 ** torch.randint(-3, 4, (1000,), generator=generator)
    here = at_file(Path(directory, "here"), 3, Path(directory))
    apart = Meeting(FileStore(str(Path(directory, "apart")), 3), num_here=1)
    sums: list[object] = []
    for meeting in (here, apart):
        with join(rank, 3, meeting, torch.device("cpu")) as tp:
            sums += [tp.sum(own.clone()).tolist(), tp.sum(own[:7].clone()).tolist()]
            assert tp.worst([rank]) == [2]
    found.put(sums)


def test_a_sum_of_three_ranks_has_the_same_bits_wherever_they_are_and_whatever_is_beside_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue[list[object]] = context.Queue()
    processes = [context.Process(target=add, args=(rank, str(tmp_path), found)) for rank in range(3)]
    for process in processes:
        process.start()
    results: list[Any] = [found.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    (many, few), apart = results[0][:2], results[0][2:]
    assert many[:7] == few
    assert apart == [many, few]
    assert results == [results[0]] * 3


def test_one_rank_needs_no_store() -> None:
    x = torch.tensor([[1.0, 2.0]])
    with join(0, 1, None, torch.device("cpu")) as tp:
        assert tp == TpGroup()
        assert tp.sum(x) is x
        assert tp.gather_columns(x) is x
        assert not torch.distributed.is_initialized()
