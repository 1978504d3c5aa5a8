"""Who may join, and who counts as lost."""

from __future__ import annotations

import pytest

from mmserve.cluster.nodes.membership import Membership
from mmserve.messages.nodes import Join, Refused

FACTS = {"--dtype": "float32", "files of the model": "aa"}
TIMEOUT_S = 2.0


@pytest.fixture
def membership() -> Membership:
    return Membership(3, FACTS, TIMEOUT_S)


def join(rank: int, **changes: str) -> Join:
    return Join(node_rank=rank, facts=FACTS | changes)


def test_all_are_here_once_each_has_joined(membership: Membership) -> None:
    assert membership.missing() == [1, 2]
    assert membership.join(b"x", join(2), 0.0) is None
    assert membership.missing() == [1]
    assert membership.join(b"y", join(1), 0.0) is None
    assert membership.missing() == []
    assert membership.peers == {2: b"x", 1: b"y"}


@pytest.mark.parametrize("rank", [-1, 0, 3])
def test_a_number_that_is_not_expected_is_refused(membership: Membership, rank: int) -> None:
    refused = membership.join(b"x", join(rank), 0.0)
    assert refused == Refused(reason=f"--node-rank {rank}: node 0 was told of 3 nodes (--nnodes)")


def test_what_differs_is_named(membership: Membership) -> None:
    message = Join(node_rank=1, facts={"--dtype": "bfloat16", "files of the model": "bb", "--new": "1"})
    refused = membership.join(b"x", message, 0.0)
    assert refused is not None
    assert refused.reason == (
        "node 1 differs from node 0: --dtype is bfloat16, not float32, --new is 1, not missing, files of the model is "
        "bb, not aa; start both with the same"
    )
    assert membership.missing() == [1, 2]


def test_the_first_of_two_with_one_number_stays_until_it_is_forgotten(membership: Membership) -> None:
    """Otherwise one that has started again could take its place unnoticed, just before it counts as lost."""
    membership.join(b"first", join(1), 0.0)
    assert membership.join(b"second", join(1), 1.0) is None
    assert membership.peers == {1: b"first"}
    membership.heard(b"first", 1.5)
    membership.heard(b"second", 9.0)
    membership.join(b"second", join(1), 1.6 + TIMEOUT_S)
    assert membership.peers == {1: b"first"}
    assert list(membership.silent(1.6 + TIMEOUT_S)) == [1]
    membership.forget(1)
    membership.join(b"second", join(1), 1.6 + TIMEOUT_S)
    assert membership.peers == {1: b"second"}


def test_a_node_is_silent_after_the_timeout(membership: Membership) -> None:
    membership.join(b"x", join(1), 0.0)
    membership.join(b"y", join(2), 0.0)
    membership.heard(b"y", 1.0)
    membership.join(b"x", join(1), 0.5)
    assert list(membership.silent(TIMEOUT_S + 0.5)) == []
    assert list(membership.silent(TIMEOUT_S + 0.6)) == [1]
    membership.forget(1)
    assert membership.missing() == [1]
