"""Samples are aggregated into the Prometheus text format."""

from __future__ import annotations

from mmserve.messages.status import MetricBatch, MetricSample
from mmserve.metrics.names import METRICS, Metric
from mmserve.metrics.series import Series

TABLE = {
    "images": Metric("counter", "Images", ("state",)),
    "steps": Metric("counter", "Steps"),
    "waiting": Metric("gauge", "Waiting"),
    "slots": Metric("gauge", "Slots", ("kind",)),
    "took_seconds": Metric("histogram", "Took", ("way",), (0.1, 1.0)),
}


def _lines(series: Series) -> set[str]:
    return set(series.render().decode().splitlines())


def _send(series: Series, process: str, *samples: tuple[object, ...]) -> None:
    batch = MetricBatch(process=process, samples=tuple(MetricSample(*sample) for sample in samples))  # type: ignore[arg-type]
    series.apply(batch)


def test_counters_add_over_processes() -> None:
    series = Series(TABLE)
    _send(series, "a", ("images", 2, ("hit",)), ("steps", 1))
    _send(series, "b", ("images", 3, ("hit",)))
    assert {'mmserve:images_total{state="hit"} 5.0', "mmserve:steps_total 1.0"} <= _lines(series)


def test_gauges_are_replaced_within_a_process_and_summed_over_processes() -> None:
    series = Series(TABLE)
    _send(series, "a", ("waiting", 9))
    _send(series, "a", ("waiting", 2), ("slots", 1, ("data",)))
    _send(series, "b", ("waiting", 3), ("slots", 4, ("data",)))
    assert {"mmserve:waiting 5.0", 'mmserve:slots{kind="data"} 5.0'} <= _lines(series)


def test_gauges_of_an_ended_process_are_removed_and_its_counters_kept() -> None:
    series = Series(TABLE)
    _send(series, "a", ("waiting", 2), ("steps", 7))
    _send(series, "b", ("waiting", 3))
    _send(series, "a")
    assert {"mmserve:waiting 3.0", "mmserve:steps_total 7.0"} <= _lines(series)


def test_histograms_observe() -> None:
    series = Series(TABLE)
    _send(series, "a", ("took_seconds", 0.05, ("v1",)), ("took_seconds", 0.5, ("v1",)))
    assert {
        'mmserve:took_seconds_bucket{le="0.1",way="v1"} 1.0',
        'mmserve:took_seconds_bucket{le="+Inf",way="v1"} 2.0',
        'mmserve:took_seconds_count{way="v1"} 2.0',
    } <= _lines(series)


def test_an_invalid_sample_is_dropped_and_the_rest_of_its_batch_kept() -> None:
    series = Series(TABLE)
    _send(
        series,
        "a",
        ("nonsense", 1),
        ("images", 1),
        ("steps", -1),
        ("steps", 1, ("too", "many")),
        ("waiting", 1, ("label",)),
        ("took_seconds", 1),
        ("steps", 1),
    )
    lines = _lines(series)
    assert "mmserve:steps_total 1.0" in lines
    assert not any("nonsense" in line for line in lines)


def test_the_real_table_renders() -> None:
    text = Series(METRICS).render().decode()
    assert "# TYPE mmserve:http_requests_total counter" in text
    assert "_created" not in text
