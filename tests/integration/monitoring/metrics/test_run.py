"""The metrics server: the text over HTTP, and counts that survive every process."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.monitoring.metrics.memory import ProcessMemory
from mmserve.monitoring.metrics.run import serving_metrics
from mmserve.monitoring.metrics.series import Series


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
    with (
        serving_metrics(endpoints.metrics_http, Series(endpoints.metrics)),
        closing(MetricsClient(endpoints, "router-0")) as client,
    ):
        client.add("num_requests_running", 3)
        status, content_type, text = _ask(endpoints.metrics_http, "GET", "/metrics")
        assert status == 200
        assert content_type.startswith("text/plain")
        assert "mmserve:num_requests_running 3.0" in text.splitlines()


_WORKER = """
import os, signal, sys
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.metrics.client import MetricsClient
client = MetricsClient(Endpoints(sys.argv[1]), "httpserver-0")
for _ in range(3):
    client.add("mm_lease_leaks", 1)
    client.add("http_requests", 1, "/live", "200")
    client.add("step_seconds", 0.5)
client.add("num_requests_in_flight", 7)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_counts_outlive_killed_workers_and_metrics_servers_and_are_never_doubled(endpoints: Endpoints) -> None:
    for starts in (1, 2, 3):
        killed = subprocess.run([sys.executable, "-c", _WORKER, endpoints.run_dir], check=False)
        assert killed.returncode == -signal.SIGKILL
        for _ in range(2):  # a metrics server has no state that its successor would lack
            with serving_metrics(endpoints.metrics_http, Series(endpoints.metrics)):
                lines = _ask(endpoints.metrics_http, "GET", "/metrics")[2].splitlines()
            assert f"mmserve:mm_lease_leaks_total {3.0 * starts}" in lines
            assert f'mmserve:http_requests_total{{route="/live",status="200"}} {3.0 * starts}' in lines
            assert f"mmserve:step_seconds_count {3.0 * starts}" in lines
            assert not any("in_flight" in line for line in lines), "a gauge of an ended process"
    assert len(list(endpoints.metrics.iterdir())) == 1


def test_unknown_paths_are_404_and_head_has_no_body(endpoints: Endpoints) -> None:
    with serving_metrics(endpoints.metrics_http, Series(endpoints.metrics)):
        assert _ask(endpoints.metrics_http, "GET", "/secrets")[0] == 404
        status, _, body = _ask(endpoints.metrics_http, "HEAD", "/metrics")
        assert (status, body) == (200, "")


def test_the_metrics_server_replaces_the_socket_of_a_killed_one(endpoints: Endpoints) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(endpoints.metrics_http))
    with serving_metrics(endpoints.metrics_http, Series(endpoints.metrics)):
        assert _ask(endpoints.metrics_http, "GET", "/metrics")[0] == 200


def test_memory_of_an_ended_process_tree_is_empty() -> None:
    assert [family.samples for family in ProcessMemory(root_pid=2**22 + 1).collect()] == [[], []]
