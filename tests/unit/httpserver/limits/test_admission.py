"""Admission by the server's phase and by the number of requests in flight."""

from __future__ import annotations

from typing import cast

import pytest

from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.messages.reply import ServerPhase
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.errors import Overloaded, Unavailable
from tests.fakes.processes.samples import Samples


def make_admission(limit: int = 1) -> tuple[AdmissionControl, Samples]:
    metrics = Samples()
    return AdmissionControl(limit, cast(MetricsClient, metrics)), metrics


def test_until_the_server_is_ready_requests_are_refused_with_the_phase() -> None:
    admission, metrics = make_admission()
    admission.phase = ServerPhase(phase="loading", ready=False, detail="42 %")
    with pytest.raises(Unavailable, match="loading: 42 %") as refused, admission.admit():
        pass
    assert refused.value.retry_after_s
    assert metrics.recorded == [("admission_rejections", 1, ("loading",))]


def test_at_most_the_limit_is_in_flight_at_once() -> None:
    admission, metrics = make_admission(limit=1)
    admission.phase = ServerPhase(phase="ready", ready=True)
    with admission.admit():
        with pytest.raises(Overloaded) as refused:
            admission.check()
        assert refused.value.retry_after_s
    with admission.admit():
        assert admission.in_flight == 1
    assert metrics.recorded[-1] == ("num_requests_in_flight", 0, ())


def test_while_draining_nothing_is_admitted() -> None:
    admission, _ = make_admission()
    admission.phase = ServerPhase(phase="ready", ready=True)
    admission.drain()
    assert not admission.ready
    with pytest.raises(Unavailable, match="draining"):
        admission.check()


def test_a_restart_is_waited_for_as_long_as_the_last_one_took() -> None:
    clock = [0.0]
    admission = AdmissionControl(1, cast(MetricsClient, Samples()), lambda: clock[0])

    def retry_after_s() -> float | None:
        with pytest.raises(Unavailable) as refused:
            admission.check()
        return refused.value.retry_after_s

    ready, restarting = ServerPhase(phase="ready", ready=True), ServerPhase(phase="restarting", ready=False)
    admission.phase = ready
    admission.phase = restarting
    assert retry_after_s() == 5.0
    clock[0] += 30.0
    admission.phase = ready
    admission.phase = restarting
    assert retry_after_s() == 30.0
    clock[0] += 12.0
    assert retry_after_s() == 18.0
    admission.drain()
    assert retry_after_s() == 5.0
