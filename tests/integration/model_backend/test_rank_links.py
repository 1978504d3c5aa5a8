"""Links between ranks: real sockets, each rank in a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from mmserve.model_backend.rank_links import RankLinks, connect

RANKS = 3
LARGE = 1_000_000
"""Numbers: more bytes than sockets hold."""
T = TypeVar("T")


def on_ranks(compute: Callable[[int, RankLinks], T], directory: Path) -> list[T]:
    """What ``compute`` returns on each rank."""

    def rank_main(rank: int) -> T:
        store = FileStore(str(directory / "store"), RANKS)
        with connect(rank, RANKS, store, directory) as links:
            return compute(rank, links)

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(rank_main, range(RANKS)))


@pytest.mark.parametrize("count", [0, 1, LARGE])
def test_sums_follow_each_other(count: int, tmp_path: Path) -> None:
    def twice(rank: int, links: RankLinks) -> list[torch.Tensor]:
        first, second = torch.full((1, count), rank), torch.full((1, count), 10 * rank)
        links.all_reduce(first, "sum")
        links.all_reduce(second, "sum")
        return [first, second]

    expected = sum(range(RANKS))
    for first, second in on_ranks(twice, tmp_path):
        assert torch.equal(first, torch.full((1, count), expected))
        assert torch.equal(second, torch.full((1, count), 10 * expected))


def test_all_ranks_sum_in_the_same_order(tmp_path: Path) -> None:
    """Another order gives other bits: 1e8 + 1 is 1e8 in float32."""
    numbers = (1e8, 1.0, -1e8)

    def summed(rank: int, links: RankLinks) -> float:
        tensor = torch.tensor(numbers[rank])
        links.all_reduce(tensor, "sum")
        return tensor.item()

    assert on_ranks(summed, tmp_path) == [0.0] * RANKS


def test_large_tensors_are_broadcast_and_gathered(tmp_path: Path) -> None:
    def both(rank: int, links: RankLinks) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
        tensor = torch.full((LARGE,), rank)
        gathered = links.gather(tensor)
        links.broadcast(tensor)
        return tensor, gathered

    (_, gathered), *others = on_ranks(both, tmp_path)
    assert gathered is not None
    assert [part.unique().tolist() for part in gathered] == [[rank] for rank in range(RANKS)]
    for tensor, nothing in others:
        assert not tensor.any()
        assert nothing is None


def test_a_rank_that_has_ended_is_an_error_of_the_others(tmp_path: Path) -> None:
    def one_ends(rank: int, links: RankLinks) -> str:
        if rank == 1:
            return "ended"
        with pytest.raises(ConnectionError):
            links.all_reduce(torch.zeros(LARGE), "sum")
        return "told"

    assert on_ranks(one_ends, tmp_path) == ["told", "ended", "told"]


def test_sockets_have_files_only_until_the_ranks_are_connected(tmp_path: Path) -> None:
    (tmp_path / "rank-links-0").write_text("of a rank that was killed")
    on_ranks(lambda rank, links: links.broadcast(torch.zeros(1)), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "store"] == []
