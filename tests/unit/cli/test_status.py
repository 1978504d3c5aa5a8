"""``mmserve status``: its table, its rates, and how it finds the server."""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mmserve.cli import main as cli
from mmserve.cli import status as status_command
from mmserve.cli.status import render, tokens_per_s
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import ProcessRow, ProcessTable
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.monitoring.health.load import FIGURES, figures_of
from mmserve.monitoring.health.run import HealthCollector, serving_probes
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.monitoring.metrics.names import METRICS
from mmserve.monitoring.metrics.run import serving_metrics
from mmserve.monitoring.metrics.series import Series
from mmserve.supervisor.startup import run_directory as run_directory_module
from mmserve.supervisor.startup.run_directory import health_urls, run_directory

ROWS = (
    ProcessRow("router-0", "router", "engine", 0, 0.0, None, 2),
    ProcessRow("httpserver-0", "httpserver 0", "httpserver 0", 41, 0.0, 1.0, 0),
)


def test_figures_are_those_of_known_metrics_summed_over_labels(tmp_path: Path) -> None:
    for metric in FIGURES.values():
        assert metric.removesuffix("_total") in METRICS
    endpoints = Endpoints(tmp_path)
    with closing(MetricsClient(endpoints, "cache_server-0")) as metrics:
        metrics.add("mm_slots", 3, "data", "leased")
        metrics.add("mm_slots", 4, "embed", "ready")
        metrics.add("generation_tokens", 9)
        figures = figures_of(Series(endpoints.metrics).render().decode())
    assert figures.keys() == FIGURES.keys()
    assert (figures["arena_slots"], figures["generation_tokens"], figures["leases"]) == (7, 9, 0)


def _report(time_s: float, tokens: float | None) -> dict[str, Any]:
    load = None if tokens is None else {**dict.fromkeys(FIGURES, 0.0), "generation_tokens": tokens}
    return {"time_s": time_s, "load": load}


def test_tokens_a_second_are_those_between_two_looks() -> None:
    assert tokens_per_s(_report(10.0, 100), _report(12.0, 150)) == 25
    assert tokens_per_s(_report(10.0, 100), _report(12.0, 7)) is None, "the server was restarted"
    assert tokens_per_s(_report(10.0, None), _report(12.0, 7)) is None


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A health server that was told of two processes, and a metrics server."""
    monkeypatch.setattr(status_command, "_INTERVAL_S", 0.01)
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as parent,
        run_directory([Path(parent)]) as run_dir,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        endpoints = Endpoints(run_dir)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        endpoints.health_url.write_text(url)
        assert health_urls([Path(parent)]) == [url]
        monkeypatch.setattr(run_directory_module, "_default_parents", lambda: [Path(parent)])
        collector = HealthCollector(endpoints)
        collector.apply(ServerPhase(phase="restarting", ready=False, engine_epoch=2, visual_epochs=(0, 1)))
        collector.apply(ProcessTable(supervisor_pid=40, started_s=0.0, processes=ROWS))
        with (
            closing(HeartbeatSender(endpoints, "httpserver-0")) as heartbeat,
            serving_probes(listener, collector),
            serving_metrics(endpoints.metrics_http, Series(endpoints.metrics)),
        ):
            heartbeat.beat(busy=False)
            yield url


@pytest.mark.usefixtures("url")
def test_the_command_finds_the_server_and_prints_its_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status"]) == 1
    printed = capsys.readouterr().out
    for text in ("restarting (unavailable)", "supervisor", "router", "httpserver 0", "gone", "engine 2", "visual 0 1"):
        assert text in printed
    assert "tokens/s: 0.0" in printed


def test_json_has_the_whole_report(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--url", url + "/", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["processes"]["router-0"]["restarts"] == 2
    assert report["load"].keys() == FIGURES.keys()
    assert report["tokens_per_s"] == 0


def test_watching_goes_on_until_it_is_interrupted(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None, None])

    def sleep(seconds: float) -> None:
        if next(looks, "end") == "end":
            raise KeyboardInterrupt

    monkeypatch.setattr(status_command.time, "sleep", sleep)
    assert status_command.status(argparse.Namespace(url=url, watch=True, json=True)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_missing_metrics_server_is_said() -> None:
    report = {
        "phase": "ready",
        "status": "ok",
        "reasons": [],
        "supervisor": {"pid": 1, "uptime_s": 90061.0},
        "epochs": {"engine": 0, "visual": [], "cache": 0},
        "processes": {},
        "load": None,
        "tokens_per_s": None,
    }
    assert "the metrics server does not answer" in render(report)
    assert "1 d 1 h" in render(report)


def test_an_address_without_a_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert cli.main(["status", "--url", url]) == 1
    assert capsys.readouterr().err.startswith(f"mmserve: error: no status from {url}")
