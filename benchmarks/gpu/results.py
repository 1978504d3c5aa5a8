"""The verdict of each step, the table, and the file of results. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.checks import FAILED, PASSED, SKIPPED, TIMED_OUT
from benchmarks.gpu.plan import Step

Result = dict[str, Any]
"""Of a step: number, name, verdict, reason, seconds, checks."""
_NAMED = 3
"""Checks that a reason names."""


def result_of(step: Step, found: Mapping[str, Any]) -> Result:
    """``found``: what ``supervise.run_step`` returns."""
    verdict, reason = _verdict(found["checks"], found["reason"])
    return {
        "step": step.number,
        "name": step.name,
        "verdict": verdict,
        "reason": reason,
        "seconds": found["seconds"],
        "checks": found["checks"],
    }


def not_started(step: Step, reason: str) -> Result:
    """Of a step for which nothing was left."""
    return {"step": step.number, "name": step.name, "verdict": SKIPPED, "reason": reason, "seconds": 0.0, "checks": []}


def _verdict(checks: Sequence[Mapping[str, Any]], ended: str) -> tuple[str, str]:
    by_verdict = {verdict: [check for check in checks if check["verdict"] == verdict] for verdict in _WORST_FIRST}
    counts = f"{len(by_verdict[PASSED])} of {len(checks)} checks passed"
    if ended.startswith("no end"):
        return TIMED_OUT, f"{ended}; {counts}"
    if failed := by_verdict[FAILED] + by_verdict[TIMED_OUT]:
        return FAILED, f"{counts}; {_named(failed)}"
    if ended:
        return FAILED, f"{ended}; {counts}"
    skipped = by_verdict[SKIPPED]
    if not by_verdict[PASSED]:
        return SKIPPED, _named(skipped) if skipped else "no checks"
    return PASSED, f"{counts}; skipped: {_named(skipped)}" if skipped else counts


_WORST_FIRST = (FAILED, TIMED_OUT, SKIPPED, PASSED)


def _named(checks: Sequence[Mapping[str, Any]]) -> str:
    """The first ones and why, equal reasons once."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        reasons.setdefault(check["reason"], []).append(check["name"])
    parts = [f"{names[0]}{_more(len(names) - 1)}: {reason}" for reason, names in reasons.items()]
    return "; ".join(parts[:_NAMED]) + _more(len(parts) - _NAMED)


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def exit_status(results: Sequence[Result]) -> int:
    """0 if a step has passed and none has failed or run out of time."""
    verdicts = [result["verdict"] for result in results]
    return int(PASSED not in verdicts or FAILED in verdicts or TIMED_OUT in verdicts)


def figures(results: Sequence[Result], step: int, check: str) -> Mapping[str, Any]:
    """Of a check that has passed; empty if it has not or was not made."""
    for result in results:
        if result["step"] == step:
            for each in result["checks"]:
                if each["name"] == check:
                    return each.get("figures") or {}
    return {}
