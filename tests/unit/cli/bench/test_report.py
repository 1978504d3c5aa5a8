"""The report: one file without scripts, in which nothing that a server said is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from mmserve.cli.bench.client import Record
from mmserve.cli.bench.figures import figures
from mmserve.cli.bench.report import Run, html, rows, warnings
from mmserve.cli.bench.svg import Series, chart

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


def test_a_late_client_is_said_before_its_figures() -> None:
    late = replace(RUNS[1], late=f"was late {EVIL}")
    assert [line[0] for line in rows([RUNS[0], late])[1:]] == ["a, 1", "a, 2 (client late)"]
    (warning,) = warnings([RUNS[0], late])
    assert warning.startswith("a, 2: these are NOT the server's figures")
    made = html("x", [], [RUNS[0], late])
    assert EVIL not in made
    assert made.index("NOT the server&#x27;s") < made.index("<table")
    assert "NOT the server" not in html("x", [], RUNS)


def test_stages_are_a_bar_and_a_table_of_the_servers_that_give_them() -> None:
    told = _run("b, 1", "b", 1, Record(ttft_s=0.1, end_s=0.4, stages_ms={"queue": 100.0, EVIL: 200.0}))
    made = html("x", [], [RUNS[0], told])
    assert EVIL not in made
    chart_of_stages = next(svg for svg in re.findall(r"<svg.*?</svg>", made, re.DOTALL) if "Stages" in svg)
    bars = ElementTree.fromstring(chart_of_stages).findall("rect")[:3]
    assert [float(bar.attrib["width"]) for bar in bars] == pytest.approx([280.0, 560.0, 280.0])
    assert [bar[0].text for bar in bars] == ["queue: 100 ms", f"{EVIL}: 200 ms", "rest: 100 ms"]
    assert "the server gives none: a, 1." in made


def test_servers_without_stages_have_no_chart_of_them() -> None:
    assert "No chart of stages" in html("x", [], RUNS)


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


def test_the_names_of_the_series_cover_no_line() -> None:
    series = [Series(f"server {number}", [(0, 0), (1, number)]) for number in range(1, 5)]
    made = ElementTree.fromstring(chart("t", "x", "y", series))
    lowest_axis = max(float(text.attrib["y"]) for text in made.iter("text") if text.attrib["class"] != "key")
    keys = [float(text.attrib["y"]) for text in made.iter("text") if text.attrib["class"] == "key"]
    assert len(keys) == 4
    assert lowest_axis < min(keys) < max(keys) <= float(made.attrib["viewBox"].split()[3])
