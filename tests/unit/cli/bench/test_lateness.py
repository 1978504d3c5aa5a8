"""When the figures of a run are the client's own."""

from __future__ import annotations

import pytest

from mmserve.cli.bench.client import Record
from mmserve.cli.bench.figures import figures
from mmserve.cli.bench.lateness import why_late


def _why(late_ms: float, ttft_ms: float, cpu_share: float, over_s: float = 60.0) -> str:
    """``over_s``: the time over which the requests were to be sent."""
    ttft_s, late_s = ttft_ms / 1e3, late_ms / 1e3
    records = [Record(ttft_s=ttft_s, end_s=ttft_s, late_s=late_s, start_s=over_s * step / 9) for step in range(10)]
    return why_late(figures(records, 1.0, {}, cpu_share))


@pytest.mark.parametrize(
    ("late_ms", "ttft_ms", "cpu_share"),
    [(0, 50, 0.1), (4.9, 10, 0.1), (40, 1000, 0.1), (0, 50, 0.8)],
    ids=["in time", "as late as any", "late by less than the times matter", "busy"],
)
def test_a_client_that_keeps_up_is_not_late(late_ms: float, ttft_ms: float, cpu_share: float) -> None:
    assert _why(late_ms, ttft_ms, cpu_share) == ""


def test_requests_that_leave_after_their_time_are_late() -> None:
    assert _why(60, 1000, 0.1) == "sent requests up to 60 ms after their time (p99)"
    assert "6 ms" in _why(6, 50, 0.1)


def test_a_rate_that_was_not_kept_is_late_however_slow_the_server() -> None:
    assert "260 ms" in _why(260, 6000, 0.1, over_s=1.5)
    assert _why(60, 6000, 0.1, over_s=1.5) == ""
    assert _why(60, 6000, 0.1, over_s=0.0) == "", "all at once"


def test_one_late_request_of_many_is_not_the_rule() -> None:
    records = [Record(ttft_s=0.1, end_s=0.1)] * 199 + [Record(ttft_s=0.1, end_s=0.1, late_s=0.5)]
    assert why_late(figures(records, 1.0, {})) == ""


def test_a_client_that_computes_all_the_time_is_late() -> None:
    assert _why(0, 50, 0.93) == "computed 93 % of the time"
    assert _why(60, 50, 0.93) == "sent requests up to 60 ms after their time (p99) and computed 93 % of the time"


def test_a_run_without_answers_can_be_late() -> None:
    assert why_late(figures([Record(error="500", late_s=0.1)], 1.0, {})) != ""
