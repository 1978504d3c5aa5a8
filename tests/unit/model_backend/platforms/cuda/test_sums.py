"""Which way ranks add up: chosen by measured times for each size, tested first, NCCL otherwise.

With stand-ins for ways and times; the kernels on symmetric memory need two GPUs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from mmserve.config.config import Config
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.cuda.sums import fastest
from mmserve.model_backend.platforms.cuda.sums.choice import NCCL, Choice, choose, described, way_of
from mmserve.model_backend.platforms.cuda.sums.fastest import ChosenSums, chosen_sums, fastest_sums
from mmserve.model_backend.platforms.cuda.sums.ways import Way, fits, ways_of
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.rank_links import connect
from mmserve.model_backend.run import with_sums
from mmserve.runtime.errors import StartupError

RANKS, CPU = 2, torch.device("cpu")


def test_the_fastest_way_is_chosen_for_each_size() -> None:
    measured = {
        1 << 20: {NCCL: 9.0, "one-shot": 30.0, "two-shot": 8.9},
        1 << 14: {NCCL: 8.0, "one-shot": 3.0, "two-shot": 5.0},
        1 << 18: {NCCL: 9.0, "one-shot": 7.0, "two-shot": 6.0},
    }
    chosen = choose(measured)
    assert chosen == (Choice(1 << 14, "one-shot"), Choice(1 << 18, "two-shot"), Choice(1 << 20, NCCL))
    assert described(chosen) == "one-shot to 16 KiB, two-shot to 256 KiB, NCCL above"
    assert described(choose({1024: {NCCL: 1.0}})) == NCCL


@pytest.mark.parametrize(("nbytes", "way"), [(16, "a"), (1024, "a"), (1025, "b"), (4096, "b"), (4097, NCCL)], ids=str)
def test_a_size_between_takes_the_way_of_the_larger_one(nbytes: int, way: str) -> None:
    assert way_of((Choice(1024, "a"), Choice(4096, "b")), nbytes) == way


def on_ranks(compute: Callable[[TpGroup], Any], folder: Path) -> list[Any]:
    """What it returns on each of two ranks, which are threads with sockets between them."""

    def rank_main(rank: int) -> Any:
        with connect(rank, RANKS, FileStore(str(folder / "store"), RANKS), folder) as links:
            return compute(TpGroup(rank, RANKS, links, links))

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(rank_main, range(RANKS)))


class Timed:
    """Seconds by way: each measurement of a size asks for NCCL first, then the ways in their order."""

    def __init__(self, *seconds: float) -> None:
        self._seconds, self._asked = seconds, 0

    def __call__(self, work: Callable[[], object]) -> Callable[[], float]:
        work()
        self._asked += 1
        seconds = self._seconds[(self._asked - 1) % len(self._seconds)]
        return lambda: seconds


def through_links(tp: TpGroup, calls: list[str], name: str) -> Way:
    def way(tensor: torch.Tensor) -> None:
        calls.append(name)
        assert tp.collectives is not None
        tp.collectives.all_reduce(tensor, "sum")

    return way


def test_ranks_take_the_way_that_is_fast_on_the_slowest_of_them(tmp_path: Path) -> None:
    def chosen(tp: TpGroup) -> Any:
        calls: list[str] = []
        ways = {name: through_links(tp, calls, name) for name in ("one-shot", "two-shot")}
        timer = Timed(5.0, 1.0, 4.0) if tp.rank else Timed(5.0, 9.0, 4.0)
        sums = chosen_sums(tp, ways, torch.float32, CPU, timer)
        assert isinstance(sums, ChosenSums)
        calls.clear()
        tensors = [torch.full(shape, 1.0 + tp.rank) for shape in ((64, 64), (3,))]
        tensors += [torch.ones(64, 64, dtype=torch.int64), torch.full((64, 64), float(tp.rank))]
        for tensor, op in zip(tensors, ("sum", "sum", "sum", "max"), strict=True):
            sums.all_reduce(tensor, op)  # type: ignore[arg-type]
        return calls, [float(tensor.view(-1)[0]) for tensor in tensors]

    assert on_ranks(chosen, tmp_path) == [(["two-shot"], [3.0, 3.0, 2.0, 1.0])] * RANKS


def test_a_way_that_is_wrong_on_one_rank_or_fails_on_all_is_taken_by_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def chosen(tp: TpGroup) -> Any:
        def wrong(tensor: torch.Tensor) -> None:
            tensor.mul_(1.0 + tp.rank)

        def failing(tensor: torch.Tensor) -> None:
            raise RuntimeError("no peer access")

        return chosen_sums(tp, {"one-shot": wrong, "two-shot": failing}, torch.float32, CPU, Timed(1.0))

    assert on_ranks(chosen, tmp_path) == [None] * RANKS
    assert "its sums are wrong" in caplog.text
    assert "no peer access" in caplog.text


class FailingFrom:
    """Adds up until it has been called so often, on the ranks that fail then."""

    def __init__(self, way: Way, calls: int) -> None:
        self._way, self._left = way, calls

    def __call__(self, tensor: torch.Tensor) -> None:
        if not self._left:
            raise RuntimeError("invalid argument")
        self._left -= 1
        self._way(tensor)


@pytest.mark.parametrize("calls", [0, 2, 5], ids=["when tested", "when first timed", "for a larger size"])
def test_a_way_that_fails_on_one_rank_alone_ends_all_ranks_before_they_wait_for_each_other(
    calls: int, tmp_path: Path
) -> None:
    def chosen(tp: TpGroup) -> str:
        waits: list[object] = []

        def add(tensor: torch.Tensor) -> None:
            tensor.mul_(3.0)  # a launch: the host goes on

        def timer(work: Callable[[], object]) -> Callable[[], float]:
            work()
            return lambda: waits.append(work) or 1.0  # type: ignore[func-returns-value]

        tp_like = replace(tp, collectives=Equal())
        way = FailingFrom(add, calls) if tp.rank else add
        with pytest.raises(StartupError) as refused:
            chosen_sums(tp_like, {"one-shot": way}, torch.float32, CPU, timer)
        assert len(waits) == max(0, 2 * (calls - 2) + (calls >= 2)), "NCCL before it, and sizes before this one"
        return str(refused.value)

    assert (
        on_ranks(chosen, tmp_path)
        == ["adding up by one-shot fails on some ranks alone, and the others wait: use --rank-sums nccl"] * RANKS
    )


def test_a_way_that_fails_on_all_ranks_while_it_is_timed_is_taken_for_no_size(tmp_path: Path) -> None:
    def chosen(tp: TpGroup) -> Any:
        failing = FailingFrom(lambda tensor: tensor.mul_(3.0), 6)  # type: ignore[arg-type,return-value]
        return chosen_sums(replace(tp, collectives=Equal()), {"one-shot": failing}, torch.float32, CPU, Timed(5.0, 1.0))

    for sums in on_ranks(chosen, tmp_path):
        assert sums is None or "one-shot" not in sums._ways


class Equal:
    """Collectives whose sum is three times a rank's numbers, without a word between the ranks."""

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        tensor.mul_(3.0)

    broadcast = gather = all_reduce


def test_where_one_rank_has_no_symmetric_memory_all_use_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def ways(*_: object) -> dict[str, Way]:
        raise RuntimeError("symmetric memory is not supported")

    monkeypatch.setattr(fastest, "symmetric_ways", ways)
    found = on_ranks(lambda tp: fastest_sums(tp, torch.float32, CPU) is tp, tmp_path)
    assert found == [True] * RANKS
    assert "ranks add up by NCCL, because symmetric memory does not work here: RuntimeError" in caplog.text


@pytest.mark.parametrize(
    ("options", "ranks", "measures"),
    [({}, 2, True), ({}, 1, False), ({"rank_sums": "nccl"}, 2, False), ({"nnodes": 2, "tp": 2}, 2, False)],
)
def test_ranks_measure_where_the_option_lets_them(options: dict[str, Any], ranks: int, measures: bool) -> None:
    class Platform(TorchPlatform):
        def with_fastest_sums(self, tp: TpGroup) -> TpGroup:
            return TpGroup(7, 8)

    tp = TpGroup(0, ranks)
    found = with_sums(Config(**options), tp, Platform(CPU, torch.float32))
    assert found == (TpGroup(7, 8) if measures else tp)


class Operations:
    """torch.ops.symm_mem of one rank, whose partner has the same numbers."""

    def one_shot_all_reduce_out(self, part: torch.Tensor, op: str, group: str, out: torch.Tensor) -> None:
        assert (op, group) == ("sum", "ranks")
        out.copy_(2 * part)

    def two_shot_all_reduce_(self, part: torch.Tensor, op: str, group: str) -> None:
        assert (op, group) == ("sum", "ranks")
        part.mul_(2)

    multimem_all_reduce_ = two_shot_all_reduce_


@pytest.mark.parametrize("has_multicast", [False, True])
def test_each_way_goes_through_the_memory_that_ranks_share(has_multicast: bool) -> None:
    room = torch.zeros(64)
    ways = ways_of(Operations(), room, "ranks", has_multicast=has_multicast)
    assert list(ways) == ["one-shot", "two-shot", "multimem"][: 2 + has_multicast]
    for way in ways.values():
        tensor = torch.arange(24.0).view(4, 6)
        way(tensor)
        assert torch.equal(tensor, 2 * torch.arange(24.0).view(4, 6))
        assert not room[24:].any()


def test_what_does_not_divide_evenly_does_not_fit() -> None:
    assert fits(torch.zeros(2, 8), 2)
    assert not fits(torch.zeros(2, 9), 2)
    assert not fits(torch.zeros(8, 8).T[:, ::2], 2)
