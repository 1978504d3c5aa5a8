"""The drafts of one sequence: what followed before, as long as such drafts were right."""

from __future__ import annotations

from array import array

import pytest

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.router.speculation.draft_source import MAX_DRAFT_TOKENS, AcceptedShares, Draft, DraftSource, Kind

TEXT = list(range(100, 140))


def source() -> DraftSource:
    return DraftSource(AcceptedShares(0.5, 0.5, 0.5))


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


def test_a_proposal_is_as_long_as_drafts_were_right() -> None:
    drafts = source()
    assert drafts.proposal(50) == Draft(4)
    drafts.observe(4, 4)
    assert drafts.shares[Kind.MODEL] > 0.5
    assert drafts.shares[Kind.SHORT] == 0.5
    assert drafts.proposal(50) == Draft(12)
    assert drafts.proposal(3) == Draft(3)


def test_a_draft_may_be_cut() -> None:
    assert Draft(3, (7, 8, 9)).first(2) == Draft(2, (7, 8))
    assert Draft(3).first(2) == Draft(2)
    assert Draft(3, (7, 8, 9)).first(5) == Draft(3, (7, 8, 9))


def test_shares_approach_what_is_observed() -> None:
    shares = AcceptedShares(0.5, 0.5, 0.5)
    for _ in range(50):
        shares.observe(Kind.LONG, num_drafted=4, num_accepted=4)
        shares.observe(Kind.SHORT, num_drafted=4, num_accepted=0)
    assert shares[Kind.LONG] == pytest.approx(1.0, abs=1e-3)
    assert shares[Kind.SHORT] == pytest.approx(0.0, abs=1e-3)
    for _ in range(200):
        shares.observe(Kind.SHORT, num_drafted=4, num_accepted=1)
    assert 0.4 < shares[Kind.SHORT] < 0.6, "each draft shows one right and one wrong token"


def test_drafts_that_are_not_computed_are_tried_again_after_a_while() -> None:
    shares = AcceptedShares(0.01, 0.9, 0.5)
    for _ in range(100):
        shares.observe_unused(Kind.SHORT)
        shares.observe_unused(Kind.LONG)
    assert 0.2 < shares[Kind.SHORT] < 0.5
    assert shares[Kind.LONG] == 0.9


def test_the_draft_model_catches_up_until_it_has_all_tokens_or_fails() -> None:
    drafts = source()
    drafts.is_catching_up = True
    drafts.computed(600, 344)
    assert drafts.is_catching_up
    drafts.computed(601, 89)
    assert drafts.is_catching_up
    drafts.computed(602, 90)
    assert not drafts.is_catching_up
    drafts.is_catching_up = True
    drafts.computed(603, 0)
    assert not drafts.is_catching_up
