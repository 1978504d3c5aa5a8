"""Steps, verdicts, goals and the comparison of the GPU battery, from recorded results."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu import goals, plan, results
from benchmarks.gpu.rates.idle import idle
from benchmarks.gpu.rates.profile import idle_part

STEP = plan.STEPS[3]
EVENTS = {"idle of the device, by events": 0.03}


def found(*verdicts: str, reason: str = "") -> dict[str, Any]:
    checks = [{"name": f"check {i}", "verdict": verdict, "reason": "why"} for i, verdict in enumerate(verdicts)]
    return results.result_of(STEP, {"checks": checks, "seconds": 1.0, "reason": reason})


def step(number: int, **checks: dict[str, Any]) -> dict[str, Any]:
    made = [{"name": name.replace("__", ", "), "verdict": "pass", "figures": values} for name, values in checks.items()]
    return {"step": number, "name": "", "verdict": "pass", "reason": "", "seconds": 0.0, "checks": made}


def test_all_steps_fit_into_eight_minutes_and_the_first_four_into_140_s() -> None:
    *_, (_, end) = plan.ends(plan.STEPS, plan.SECONDS)
    assert end <= plan.SECONDS == 480
    assert sum(step.seconds for step in plan.chosen("0,1,2,3")) <= 140


def test_a_step_may_use_what_those_before_it_have_left() -> None:
    ends = dict(plan.ends(plan.chosen("1,2"), 60))
    assert list(ends.values()) == [25, 60]


@pytest.mark.parametrize("only", ["9", "1,x", ""])
def test_unknown_steps_are_refused(only: str) -> None:
    with pytest.raises(ValueError, match=r"step|invalid"):
        plan.chosen(only)


@pytest.mark.parametrize(
    ("verdicts", "reason", "expected"),
    [
        (["pass", "pass"], "", "pass"),
        (["pass", "skipped"], "", "pass"),
        (["skipped"], "", "skipped"),
        (["pass", "fail"], "", "fail"),
        (["pass", "timed out"], "", "fail"),
        (["pass"], "ended with signal SIGSEGV", "fail"),
        (["pass", "fail"], "no end within 45 s", "timed out"),
        ([], "", "skipped"),
    ],
)
def test_verdict_of_a_step(verdicts: list[str], reason: str, expected: str) -> None:
    assert found(*verdicts, reason=reason)["verdict"] == expected


def test_exit_status() -> None:
    passed, skipped, failed = found("pass"), found("skipped"), found("fail")
    assert results.exit_status([passed, skipped]) == 0
    assert results.exit_status([passed, failed]) == 1
    assert results.exit_status([skipped]) == 1, "nothing was shown"
    assert results.exit_status([]) == 1


def test_a_reason_names_equal_ones_once() -> None:
    assert found("skipped", "skipped", "skipped")["reason"] == "check 0 and 2 more: why"


def test_goals_of_recorded_figures() -> None:
    recorded = [
        {
            "step": 3,
            "checks": [
                {"name": "float32, llama", "verdict": "pass"},
                {"name": "float32, qwen2", "verdict": "fail"},
                {"name": "float32, phi3", "verdict": "skipped"},
                {"name": "bfloat16, packaged model", "verdict": "fail"},
            ],
        },
        step(5, **{"Llama-3.1-8B__decode__1": {"of the floor": 0.8, "idle of the device": 0.4}}),
        step(5, **{"Llama-3.1-8B__decode__64": {"of the floor": 0.7, "idle of the device": 0.2, **EVENTS}}),
        step(5, **{"Llama-3.1-8B__decode beside a tower": {"alone over bounded": 0.8}}),
        step(
            6,
            **{
                "text beside pictures": {"itl_p99_ms": 13.0, "itl_p99_ms_alone": 10.0},
                "Qwen2.5-VL-7B__start": {"bytes/s of loading": 5e9},
                "Qwen2.5-1.5B__start": {"s to ready": 40.0},
            },
        ),
    ]
    rows = {row["goal"]: (row["got"], row["met"]) for row in goals.rows(recorded)}
    assert rows["tokens of the families in float32 are the CPU's"] == (0.5, "no")
    assert rows["8B, decode at batch 1, of the floor"] == (0.8, "yes")
    assert rows["8B, decode at batch 64, of the floor"] == (0.7, "no")
    assert rows["8B, batch 64, the device works between decode steps"] == (0.97, "yes")
    assert rows["ITL p99 of text alone over beside pictures"] == (10 / 13, "yes")
    assert rows["8B, batch 64, the slowest steps alone over those beside a tower"] == (0.8, "yes")
    assert rows["bytes/s of weights from the page cache, for an 8B in 10 s"] == (5e9, "yes")
    assert rows["starts a second of a server with graphs, for one in 30 s"] == (1 / 40, "no")
    assert rows["8B, prompt of 8k, of the products' rate"] == (None, "not measured")


def test_comparison_of_two_runs() -> None:
    old, new = ({"steps": [step(1, copy={"bytes/s": rate, "name": "a card"})]} for rate in (2.0, 3.0))
    assert goals.comparison(old, new).splitlines()[2:] == ["| copy: bytes/s | 2 | 3 | 1.50 |"]


@pytest.mark.parametrize(
    ("spans", "idle"),
    [
        ([(0, 10)], 0.0),
        ([(0, 4), (6, 10)], 0.2),
        ([(0, 4), (2, 10), (3, 5)], 0.0),
        ([(8, 10), (0, 1)], 0.7),
        ([], 1.0),
    ],
)
def test_idle_part_of_spans(spans: list[tuple[float, float]], idle: float) -> None:
    assert idle_part(spans) == pytest.approx(idle)


def test_idle_is_what_a_step_takes_longer_than_its_replay() -> None:
    assert idle(period_s=0.010, busy_s=0.0097) == pytest.approx(0.03)
    assert idle(period_s=0.010, busy_s=0.0101) == 0.0
