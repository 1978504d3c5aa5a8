"""What a drill counts as found, and how it is printed."""

from __future__ import annotations

from mmserve.cli.chaos.clients import Outcome, Verdict
from mmserve.cli.chaos.drill import FaultRecord, Result
from mmserve.cli.chaos.processes import Fault
from mmserve.cli.chaos.report import render
from mmserve.cli.chaos.resumption import Pause


def outcome(verdict: Verdict, ended_s: float) -> Outcome:
    return Outcome(3, verdict, "why", ended_s - 1, ended_s, (Pause(ended_s - 0.75, ended_s - 0.25, in_answer=True),), 0)


HTTP_KILL = FaultRecord(Fault("httpserver 0", "kill"), 100.0, 64, 2.0)
ENGINE_KILL = FaultRecord(Fault("router", "kill"), 200.0, 64, 4.0)


def test_connections_may_break_only_while_an_http_worker_is_lost() -> None:
    result = Result([outcome("broken", 101.0)], [HTTP_KILL, ENGINE_KILL])
    assert result.passed
    for late in (99.0, 103.0, 201.0):
        assert not Result([outcome("broken", late)], [HTTP_KILL, ENGINE_KILL]).passed


def test_what_it_took_to_inflict_the_fault_is_a_part_of_that_time() -> None:
    slow = FaultRecord(Fault("httpserver 0", "kill"), 100.0, 64, 2.0, inflicting_s=0.5)
    assert Result([outcome("broken", 102.25)], [slow]).passed
    assert not Result([outcome("broken", 102.75)], [slow]).passed


def test_no_fault_explains_a_wrong_or_failed_answer() -> None:
    assert not Result([outcome("wrong", 101.0)], [HTTP_KILL]).passed
    assert not Result([outcome("failed", 101.0)], [HTTP_KILL]).passed


def test_a_server_that_does_not_recover_or_keeps_something_has_failed() -> None:
    assert not Result(faults=[FaultRecord(Fault("router", "kill"), 1.0, 64, None)]).passed
    assert not Result(left_over={"mm_leases": 1.0}).passed


def test_the_report_has_a_row_for_each_fault_and_ends_with_the_verdict() -> None:
    outcomes, records = [outcome("right", 1.0), outcome("wrong", 2.0)], [HTTP_KILL, ENGINE_KILL, ENGINE_KILL]
    result = Result(outcomes, records, {}, [0.5], 100, 102)
    lines = render(result).splitlines()
    assert [line.split()[:1] for line in lines[1:3]] == [["httpserver"], ["router"]]
    assert "  2 " in lines[2]
    assert "  question 3 wrong: why" in lines
    assert "change: +2.0%" in lines
    assert any("streams resumed by a restarted engine: 1;" in line and "0.25 s max" in line for line in lines)
    assert lines[-1] == "FAILED"
