"""The learned time of the draft model."""

from __future__ import annotations

import pytest

from mmserve.messages.step import UNKNOWN_TIMES, DraftTimes
from mmserve.router.speculation.proposal_costs import ProposalCosts


def test_what_was_measured_at_start_holds_at_first() -> None:
    costs = ProposalCosts(DraftTimes(0.002, 0.0001))
    assert costs.row_s == 0.0001
    assert costs.pass_seconds(2) == pytest.approx([0.002, 0.002])


def test_nothing_is_known_without() -> None:
    costs = ProposalCosts(UNKNOWN_TIMES)
    costs.observe(3, 4, 3, 0.0)
    assert (costs.row_s, costs.pass_seconds(3)) == (0.0, [0.0, 0.0, 0.0])


def test_a_draft_takes_a_pass_for_each_token() -> None:
    costs = ProposalCosts(UNKNOWN_TIMES)
    costs.observe(1, 4, 1, 0.008)
    costs.observe(8, 2, 16, 0.012)
    assert costs.pass_seconds(8)[0] == pytest.approx(0.002)
    assert costs.pass_seconds(8)[-1] == pytest.approx(0.006)
    assert costs.row_s == 0.0


def test_a_long_first_pass_tells_about_its_tokens() -> None:
    costs = ProposalCosts(UNKNOWN_TIMES)
    costs.observe(1, 4, 1, 0.008)
    assert costs.observe(1, 3, 200, 0.004 + 0.1) == pytest.approx(0.1)
    assert costs.row_s == pytest.approx(0.0005)
    assert costs.pass_seconds(1) == pytest.approx([0.002])
    for _ in range(60):
        costs.observe(1, 1, 200, 0.2)
    assert costs.row_s == pytest.approx(0.001, rel=0.01)


def test_a_first_pass_with_few_rows_tells_nothing_about_long_ones() -> None:
    costs = ProposalCosts(DraftTimes(0.002, 0.0001))
    assert costs.observe(1, 1, 20, 0.003) == pytest.approx(0.003)
    assert costs.row_s == 0.0001


def test_a_pass_that_failed_tells_nothing_and_is_paid() -> None:
    costs = ProposalCosts(DraftTimes(0.002, 0.0001))
    assert costs.observe(1, 1, 0, 0.3) == 0.3
    assert (costs.row_s, costs.pass_seconds(1)) == (0.0001, pytest.approx([0.002]))
