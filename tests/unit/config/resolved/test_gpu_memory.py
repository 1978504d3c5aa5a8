"""How the memory of a GPU is divided."""

from __future__ import annotations

import pytest

from mmserve.config.resolved.gpu_memory import (
    Card,
    RankShare,
    card_of,
    graphs_nbytes,
    kv_nbytes,
    least_card_nbytes,
    sampler_nbytes,
    shares_cards,
    step_nbytes,
    tower_nbytes,
)

MIB, GIB = 1 << 20, 1 << 30
SHARE = RankShare(step_nbytes=2 * GIB, graphs_nbytes=GIB)


def test_the_cache_gets_what_weights_a_step_graphs_and_a_margin_leave() -> None:
    card = Card(100 * GIB, 80 * GIB)
    assert kv_nbytes(card, SHARE, 0.9) == 90 * GIB - 20 * GIB - 3 * GIB - GIB - 256 * MIB


def test_what_others_on_the_card_use_is_not_taken() -> None:
    less = kv_nbytes(Card(100 * GIB, 50 * GIB), SHARE, 0.9)
    assert kv_nbytes(Card(100 * GIB, 80 * GIB), SHARE, 0.9) - less == 30 * GIB


def test_all_ranks_of_a_card_and_their_steps_fit_together() -> None:
    card = Card(100 * GIB, 80 * GIB)
    each = kv_nbytes(card, SHARE, 0.9, ranks=2)
    assert 2 * (each + sum(SHARE)) + 20 * GIB <= 90 * GIB
    assert each == (kv_nbytes(card, RankShare(0, 0), 0.9)) // 2 - 3 * GIB


def test_a_full_card_has_no_room() -> None:
    assert kv_nbytes(Card(100 * GIB, 9 * GIB), SHARE, 0.9) == 0


def test_the_smallest_card_that_has_room() -> None:
    needed = 40 * GIB
    total = least_card_nbytes(needed, 0.8)
    assert kv_nbytes(Card(total, total), RankShare(0, 0), 0.8) == pytest.approx(needed, rel=1e-6)


def test_graphs_share_the_room_of_the_largest() -> None:
    one, all_of_them = (graphs_nbytes(rungs, 4096 * MIB, 2048, 1000) for rungs in ((64,), (1, 2, 64)))
    logits = 12 * 64 * 1000
    assert all_of_them - one == 2 * (one - 4096 * MIB * 64 // 2048 - logits)
    assert graphs_nbytes((), 4096 * MIB, 2048, 1000) == 0


def test_parts_grow_with_what_they_hold() -> None:
    assert sampler_nbytes(256, 128_256) == 2 * sampler_nbytes(128, 128_256) > 256 * 128_256 * 4
    assert step_nbytes(2048, 4096, 14_336, 1, 2) > step_nbytes(2048, 4096, 14_336, 2, 2) > 2048 * 4096 * 6
    assert tower_nbytes(16, 1024, 1280, 3420, 2) == 2 * tower_nbytes(8, 1024, 1280, 3420, 2)
    assert tower_nbytes(1, 100_000, 1280, 3420, 2) == tower_nbytes(1, 4096, 1280, 3420, 2)


def test_visual_servers_take_the_cards_that_they_are_given() -> None:
    assert [card_of(index, (), 2) for index in range(3)] == [0, 1, 0]
    assert [card_of(index, (3, 1), 4) for index in range(3)] == [3, 1, 3]
    with pytest.raises(ValueError, match="no GPU 3"):
        card_of(0, (3,), 2)


def test_a_card_without_ranks_is_not_shared() -> None:
    assert shares_cards((), ranks=2)
    assert shares_cards((1,), ranks=2)
    assert not shares_cards((2, 3), ranks=2)
