"""The report: one file without scripts, in which nothing that a server said is markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from mmserve.load.client import Record
from mmserve.load.figures import figures
from mmserve.load.report import Run, html, rows
from mmserve.load.svg import Series, chart

EVIL = '<script>alert("x")</script>'


def _run(label: str, server: str, level: float, *records: Record) -> Run:
    return Run(label, server, level, figures(records, 1.0, {}), records)


RUNS = [
    _run("a, 1", "a", 1, Record(ttft_s=0.1, end_s=0.4, gaps_s=[0.1, 0.2], output_tokens=3), Record(error=EVIL)),
    _run("a, 2", "a", 2, Record(ttft_s=0.2, end_s=0.9, gaps_s=[0.7], output_tokens=2, start_s=0.1)),
]


def test_a_report_is_one_file_that_runs_and_loads_nothing() -> None:
    made = html(EVIL, [EVIL], RUNS)
    assert EVIL not in made
    assert "&lt;script&gt;" in made
    assert not re.search(r"<script|<link|<img|src=|href=|@import|url\(|\bon\w+=", made)
    charts = re.findall(r"<svg.*?</svg>", made, re.DOTALL)
    assert len(charts) == 6
    for one in charts:
        ElementTree.fromstring(one)


def test_the_table_has_a_row_for_each_run() -> None:
    heading, *lines = rows(RUNS)
    assert [line[0] for line in lines] == ["a, 1", "a, 2"]
    assert [line[heading.index("failed")] for line in lines] == ["1", "0"]
    assert "good/s" not in heading


def test_a_report_of_nothing_but_failures_is_made() -> None:
    assert "Errors" in html("x", [], [_run("a", "a", 1, Record(error="500"))])


def test_charts_scale_to_their_values() -> None:
    made = chart("t", "x", "y", [Series("one", [(0, 0), (90, 0.7), (40, float("nan"))])], dots=True)
    ticks = re.findall(r'class="tick"[^>]*>([^<]*)<', made)
    assert ticks[-2:] == ["100", "1"]
    assert made.count("<circle") == 2


def test_long_series_are_thinned_and_keep_their_ends() -> None:
    made = chart("t", "x", "y", [Series("one", [(float(x), float(x)) for x in range(10_000)])])
    points = re.findall(r'points="([^"]*)"', made)[0].split()
    assert len(points) == 400
    assert points[0] == "64.0,256.0"
