"""The page of metrics is the table of metrics."""

from pathlib import Path

from docs.metrics import page


def test_the_metrics_page_is_current() -> None:
    assert Path("docs/metrics.md").read_text() == page(), "run `make docs`"
