"""Figures of runs, by vLLM's definitions."""

from __future__ import annotations

import math

import pytest

from mmserve.cli.bench.client import Record
from mmserve.cli.bench.figures import figures, median_run, percentile

FAST = Record(ttft_s=0.1, end_s=0.5, gaps_s=[0.1, 0.3], prompt_tokens=10, output_tokens=5, cached_tokens=4)
SLOW = Record(ttft_s=1.0, end_s=3.0, gaps_s=[2.0], prompt_tokens=20, output_tokens=3, late_s=0.002)
ONE_TOKEN = Record(ttft_s=0.2, end_s=0.2, output_tokens=1)
FAILED = Record(error="500")


def test_counts_and_throughput_are_of_answers() -> None:
    found = figures([FAST, SLOW, FAILED], 2.0, {})
    assert (found["num_prompts"], found["completed"], found["failed"]) == (3, 2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"], found["cached_input_tokens"]) == (30, 8, 4)
    assert (found["request_throughput"], found["output_throughput"]) == (1.0, 4.0)
    assert "request_goodput" not in found


def test_times_are_those_of_the_protocol() -> None:
    found = figures([FAST, SLOW, ONE_TOKEN], 2.0, {})
    assert found["mean_ttft_ms"] == pytest.approx(1300 / 3)
    assert found["p50_tpot_ms"] == pytest.approx((100 + 1000) / 2), "an answer of one token has none"
    assert found["p50_itl_ms"] == pytest.approx(300)
    assert found["p99_e2el_ms"] == pytest.approx(3000, rel=0.02)


def test_a_good_answer_meets_every_limit() -> None:
    records = [FAST, SLOW, ONE_TOKEN, FAILED]
    assert figures(records, 2.0, {"ttft": 500})["request_goodput"] == 1.0
    assert figures(records, 2.0, {"ttft": 500, "tpot": 50})["request_goodput"] == 0.5, "TPOT of one token counts as 0"
    found = figures(records, 2.0, {"e2el": 5000})
    assert (found["request_goodput"], found["slo_attainment"]) == (1.5, 0.75)


def test_a_run_without_answers_has_no_times() -> None:
    found = figures([FAILED], 1.0, {"ttft": 1})
    assert math.isnan(found["p50_ttft_ms"])
    assert found["request_goodput"] == 0


@pytest.mark.parametrize(("q", "value"), [(0, 1.0), (50, 2.5), (100, 4.0), (90, 3.7)])
def test_percentiles_are_interpolated(q: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], q) == pytest.approx(value)


def test_medians_are_of_each_figure() -> None:
    assert median_run([{"a": 1, "b": 5.0}, {"a": 2, "b": 4.0}, {"a": 9, "b": 0.0}]) == {"a": 2, "b": 4.0}
