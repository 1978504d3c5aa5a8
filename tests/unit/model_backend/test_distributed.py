"""How heads are shared out to ranks."""

from __future__ import annotations

import pytest

from mmserve.model_backend.distributed import HeadShare, TpGroup


@pytest.mark.parametrize(
    ("heads", "ranks", "shares"),
    [
        (4, 1, [(0, 4)]),
        (4, 2, [(0, 2), (2, 2)]),
        (2, 2, [(0, 1), (1, 1)]),
        (2, 4, [(0, 1), (0, 1), (1, 1), (1, 1)]),
        (1, 3, [(0, 1)] * 3),
    ],
)
def test_heads_of_each_rank(heads: int, ranks: int, shares: list[tuple[int, int]]) -> None:
    assert [TpGroup(rank, ranks).heads(heads) for rank in range(ranks)] == [HeadShare(*share) for share in shares]
