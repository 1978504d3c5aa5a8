"""Admission by the server's phase and by the number of requests in flight."""

from __future__ import annotations

from typing import cast

import pytest

from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.messages.reply import ServerPhase
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.errors import Overloaded, Unavailable
from tests.fakes.samples import Samples


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
