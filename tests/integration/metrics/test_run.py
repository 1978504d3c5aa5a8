"""The metrics server over real sockets: samples arrive over ZeroMQ, the text is served over HTTP."""

from __future__ import annotations

import http.client
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mmserve.ipc.channel import Receiver
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.status import MetricBatch
from mmserve.metrics.client import MetricsClient
from mmserve.metrics.memory import ProcessMemory
from mmserve.metrics.run import serving_metrics
from mmserve.metrics.series import Series


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


@pytest.fixture
def endpoints() -> Iterator[Endpoints]:
    with tempfile.TemporaryDirectory(dir="/tmp") as run_dir:
        yield Endpoints(run_dir)


def _ask(path: Path, method: str, target: str) -> tuple[int, str, str]:
    with closing(_UnixConnection(path)) as connection:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()


def test_samples_of_a_client_are_scraped(endpoints: Endpoints) -> None:
    series = Series()
    inbox: Receiver[MetricBatch] = Receiver(endpoints.metrics, MetricBatch)
    with (
        closing(inbox),
        serving_metrics(endpoints.metrics_http, series),
        closing(MetricsClient(endpoints, "router-0")) as client,
    ):
        client.add("num_requests_running", 3)
        series.apply(inbox.receive())
        status, content_type, text = _ask(endpoints.metrics_http, "GET", "/metrics")
        assert status == 200
        assert content_type.startswith("text/plain")
        assert "mmserve:num_requests_running 3.0" in text.splitlines()


def test_samples_added_for_later_are_sent_with_the_next_flush(endpoints: Endpoints) -> None:
    inbox: Receiver[MetricBatch] = Receiver(endpoints.metrics, MetricBatch)
    with closing(inbox), closing(MetricsClient(endpoints, "http-0")) as client:
        client.add_later("event_loop_lag_seconds", 0.25)
        client.add_later("event_loop_lag_seconds", 0.5)
        client.flush()
        assert [sample.value for sample in inbox.receive().samples] == [0.25, 0.5]


def test_unknown_paths_are_404_and_head_has_no_body(endpoints: Endpoints) -> None:
    with serving_metrics(endpoints.metrics_http, Series()):
        assert _ask(endpoints.metrics_http, "GET", "/secrets")[0] == 404
        status, _, body = _ask(endpoints.metrics_http, "HEAD", "/metrics")
        assert (status, body) == (200, "")


def test_the_metrics_server_replaces_the_socket_of_a_killed_one(endpoints: Endpoints) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(endpoints.metrics_http))
    with serving_metrics(endpoints.metrics_http, Series()):
        assert _ask(endpoints.metrics_http, "GET", "/metrics")[0] == 200


def test_memory_of_an_ended_process_tree_is_empty() -> None:
    assert [family.samples for family in ProcessMemory(root_pid=2**22 + 1).collect()] == [[], []]
