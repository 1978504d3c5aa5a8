"""``python -m docs.metrics`` prints docs/metrics.md, made from the table of metrics (``make docs``)."""

from __future__ import annotations

from mmserve.monitoring.metrics.names import METRICS, PREFIX, Metric

_HEAD = f"""\
# Metrics

Made by `make docs` from `mmserve/monitoring/metrics/names.py`; do not edit.

`GET /metrics` has these figures of all processes together, in Prometheus' text format; each name begins with
`{PREFIX}`. Counters end in `_total`; histograms have `_bucket`, `_sum` and `_count`. Counters and histograms go on
where they were when a process is started again, and begin at zero with the server. A series with labels appears with
its first sample. [Operating](operating.md#what-to-watch) says which to watch.

| name | type | labels | meaning |
|---|---|---|---|
"""
_READ_AT_A_SCRAPE = """\

Read when the page is asked for, and not counted by a process:

| name | type | labels | meaning |
|---|---|---|---|
| `process_rss_bytes` | gauge | `process` | resident memory of a process, shared pages in full |
| `process_pss_bytes` | gauge | `process` | the same, shared pages by share |
| `container_memory_limit_bytes` | gauge | | memory limit of the container; without one there is no such series |
| `container_memory_left_bytes` | gauge | | of it not used, inactive page cache included |
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_row(name, metric) for name, metric in METRICS.items()) + _READ_AT_A_SCRAPE


def _row(name: str, metric: Metric) -> str:
    shown = f"{name}_total" if metric.kind == "counter" else name
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{shown}` | {metric.kind} | {labels} | {metric.help} |\n"


if __name__ == "__main__":
    print(page(), end="")
