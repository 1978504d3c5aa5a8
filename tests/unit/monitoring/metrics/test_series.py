"""What processes count is rendered in the Prometheus text format."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.metrics import store
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.monitoring.metrics.names import METRICS, Metric
from mmserve.monitoring.metrics.series import Series

TABLE = {
    "images": Metric("counter", "Images", ("state",)),
    "steps": Metric("counter", "Steps"),
    "waiting": Metric("gauge", "Waiting"),
    "slots": Metric("gauge", "Slots", ("kind",)),
    "took_seconds": Metric("histogram", "Took", ("way",), (0.1, 1.0)),
}


class Server:
    """Processes that count, and the series that are made of it."""

    def __init__(self, run_dir: Path, stack: ExitStack) -> None:
        self.endpoints = Endpoints(run_dir)
        self._stack = stack

    def process(self, name: str) -> MetricsClient:
        client = MetricsClient(self.endpoints, name, TABLE)
        self._stack.callback(client.close)
        return client

    def lines(self) -> set[str]:
        return set(Series(self.endpoints.metrics, TABLE).render().decode().splitlines())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with ExitStack() as stack:
        yield Server(tmp_path, stack)


def test_counters_add_over_processes(server: Server) -> None:
    a, b = server.process("a"), server.process("b")
    a.add("images", 2, "hit")
    a.add("steps", 1)
    b.add("images", 3, "hit")
    assert {'mmserve:images_total{state="hit"} 5.0', "mmserve:steps_total 1.0"} <= server.lines()


def test_gauges_are_replaced_within_a_process_and_summed_over_processes(server: Server) -> None:
    a, b = server.process("a"), server.process("b")
    a.add("waiting", 9)
    a.add("waiting", 2)
    a.add("slots", 1, "data")
    b.add("waiting", 3)
    b.add("slots", 4, "data")
    assert {"mmserve:waiting 5.0", 'mmserve:slots{kind="data"} 5.0'} <= server.lines()


def test_gauges_of_an_ended_process_are_removed_and_its_counters_kept(server: Server) -> None:
    ended = MetricsClient(server.endpoints, "a", TABLE)
    ended.add("waiting", 2)
    ended.add("steps", 7)
    server.process("b").add("waiting", 3)
    ended.close()
    assert {"mmserve:waiting 3.0", "mmserve:steps_total 7.0"} <= server.lines()
    successor = server.process("a")
    assert {"mmserve:waiting 3.0", "mmserve:steps_total 7.0"} <= server.lines()
    successor.add("steps", 1)
    successor.add("waiting", 1)
    assert {"mmserve:waiting 4.0", "mmserve:steps_total 8.0"} <= server.lines()


def test_a_process_and_its_successor_may_live_at_the_same_time(server: Server) -> None:
    for _ in range(2):
        client = server.process("a")
        client.add("steps", 2)
        client.add("waiting", 1)
    assert {"mmserve:waiting 2.0", "mmserve:steps_total 4.0"} <= server.lines()


def test_histograms_observe(server: Server) -> None:
    for value in (0.05, 0.1, 0.5):
        server.process("a").add("took_seconds", value, "v1")
    assert {
        'mmserve:took_seconds_bucket{le="0.1",way="v1"} 2.0',
        'mmserve:took_seconds_bucket{le="1.0",way="v1"} 3.0',
        'mmserve:took_seconds_bucket{le="+Inf",way="v1"} 3.0',
        'mmserve:took_seconds_count{way="v1"} 3.0',
        'mmserve:took_seconds_sum{way="v1"} 0.65',
    } <= server.lines()


def test_counters_without_labels_begin_at_zero(server: Server) -> None:
    assert "mmserve:steps_total 0.0" in server.lines()


def test_an_invalid_sample_is_dropped_and_logged_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    client = server.process("a")
    for name, value, *labels in (
        ("nonsense", 1),
        ("images", 1),
        ("steps", -1),
        ("steps", 1, "too", "many"),
        ("waiting", 1, "label"),
        ("took_seconds", 1),
        ("steps", 1),
    ):
        client.add(str(name), float(value), *map(str, labels))
    lines = server.lines()
    assert "mmserve:steps_total 1.0" in lines
    assert not any("nonsense" in line for line in lines)
    assert len(caplog.records) == 5


def test_series_beyond_the_room_of_the_file_are_dropped(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    client = server.process("a")
    for number in range(store.FILE_NBYTES // 16):
        client.add("images", 1, str(number))
    client.add("images", 1, "0")
    assert 'mmserve:images_total{state="0"} 2.0' in server.lines()
    assert "too many series" in caplog.text


def test_a_full_disk_costs_the_metrics_of_a_process_and_not_the_process(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    server.process("a").add("steps", 1)
    assert "mmserve:steps_total 0.0" in server.lines()
    assert "No space left" in caplog.text


@given(st.binary(min_size=1, max_size=40), st.integers(0, 40), st.integers(0, 400))
def test_a_damaged_file_is_read_up_to_the_damage(damage: bytes, at: int, used: int) -> None:
    record = store._RECORD.pack(11, 1) + msgspec.msgpack.encode(("images", ("hit",))) + bytes(5 + 8)
    data = bytearray(store._HEADER.pack(store._MAGIC, used) + 2 * record)
    data[16 + at : 16 + at + len(damage)] = damage
    for (name, labels), first, count in store._records(memoryview(data)):
        assert isinstance(name, str)
        assert isinstance(labels, tuple)
        assert 8 * (first + count) <= len(data)


def test_the_real_table_renders(tmp_path: Path) -> None:
    text = Series(tmp_path, METRICS).render().decode()
    assert "# TYPE mmserve:http_requests_total counter" in text
    assert "_created" not in text
