"""Running checks: each has its own end."""

from __future__ import annotations

import threading

from mmserve.cli.doctor.finding import Check, Finding, ok, run_checks


def test_one_check_ends_no_other() -> None:
    never = threading.Event()

    def hangs() -> Finding:
        never.wait()
        return ok("")

    def raises() -> Finding:
        raise OSError(5, "Input/output error")

    checks = [Check("hangs", hangs), Check("raises", raises), Check("fine", lambda: ok("here"))]
    hung, raised, fine = run_checks(checks, timeout_s=0.05)
    never.set()
    assert (hung.name, hung.status, raised.status, fine.status) == ("hangs", "failure", "failure", "ok")
    assert hung.do
    assert hung.seconds >= 0.05
    assert "Input/output error" in raised.found
    assert fine.found == "here"
