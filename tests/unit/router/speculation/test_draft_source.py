"""The drafts of one sequence: what followed before, as long as such drafts were right."""

from __future__ import annotations

from array import array

import pytest

from mmserve.config.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.router.speculation.draft_source import MAX_DRAFT_TOKENS, AcceptedShares, DraftSource

TEXT = list(range(100, 140))


def source() -> DraftSource:
    return DraftSource(AcceptedShares(0.5, 0.5))


def draft(text: list[int], ending: tuple[int, ...] = (), max_tokens: int = 50) -> list[int]:
    return source().draft(array("q", [*text, 1, *text[:3]]), ending, max_tokens)


def test_what_followed_is_drafted() -> None:
    assert draft(TEXT) == TEXT[3:7]
    assert draft(TEXT, max_tokens=2) == TEXT[3:5]
    assert source().draft(array("q", TEXT), (), 50) == []


def test_a_draft_ends_before_what_ends_the_sequence_and_before_an_image() -> None:
    assert draft(TEXT, ending=(TEXT[5],)) == TEXT[3:5]
    assert draft([*TEXT[:4], FIRST_VIRTUAL_TOKEN, *TEXT[4:]]) == TEXT[3:4]


def test_drafts_become_longer_while_they_are_right() -> None:
    tokens, drafts = array("q", [*TEXT, 1, *TEXT[:3]]), source()
    lengths = []
    for accepted in (4, 12, 16, 0, 1):
        found = drafts.draft(tokens, (), 50)
        lengths.append(len(found))
        drafts.observe(len(found), accepted)
    assert lengths == [4, 12, MAX_DRAFT_TOKENS, MAX_DRAFT_TOKENS, 4]
    assert len(drafts.draft(tokens, (), 50)) == 6


def test_shares_approach_what_is_observed() -> None:
    shares = AcceptedShares(0.5, 0.5)
    for _ in range(50):
        shares.observe(long=True, num_drafted=4, num_accepted=4)
        shares.observe(long=False, num_drafted=4, num_accepted=0)
    assert shares[True] == pytest.approx(1.0, abs=1e-3)
    assert shares[False] == pytest.approx(0.0, abs=1e-3)
    for _ in range(200):
        shares.observe(long=False, num_drafted=4, num_accepted=1)
    assert 0.4 < shares[False] < 0.6, "each draft shows one right and one wrong token"


def test_drafts_that_are_not_computed_are_tried_again_after_a_while() -> None:
    shares = AcceptedShares(0.01, 0.9)
    for _ in range(100):
        shares.observe_unused(long=False)
        shares.observe_unused(long=True)
    assert 0.2 < shares[False] < 0.5
    assert shares[True] == 0.9
