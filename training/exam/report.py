"""Counts right answers: Wilson intervals, the table of a set, and whether its aims are met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from training.exam.formats import REFERENCE
from training.exam.sets import ExamSet

Row = dict[str, Any]  # kind, question, expected, and per way {"text", "ended", "right"}
TOLERATED = 0.02  # what another file format may cost


def wilson(right: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % confidence interval of a share: (low, high)."""
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(rows: Sequence[Row], way: str) -> float:
    """Share of right answers."""
    return sum(row[way]["right"] for row in rows) / len(rows)


def cell(rows: Sequence[Row], way: str) -> str:
    """A share with its interval in per cent."""
    low, high = wilson(sum(row[way]["right"] for row in rows), len(rows))
    return f"{100 * share(rows, way):.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def table(rows: list[Row], ways: list[str]) -> str:
    """The markdown table: a line a kind in their order, then all."""
    differing = len(ways) == 2
    head = ["kind", "questions", *ways, *(["differing answers"] if differing else [])]
    lines = [head, ["---"] * len(head)]
    for kind in (*dict.fromkeys(row["kind"] for row in rows), "all"):
        mine = [row for row in rows if kind in ("all", row["kind"])]
        cells = [kind, str(len(mine)), *(cell(mine, way) for way in ways)]
        if differing:
            cells.append(str(sum(row[ways[0]]["text"] != row[ways[1]]["text"] for row in mine)))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def by_kind(rows: list[Row], way: str) -> dict[str, float]:
    """Share of right answers per kind."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    return {kind: share([row for row in rows if row["kind"] == kind], way) for kind in kinds}


def verdict(asked: ExamSet, rows: list[Row], way: str) -> str:
    """One line: the aims and whether they are met."""
    endless = sum(not row[way]["ended"] for row in rows)
    shares = by_kind(rows, way)
    tail = f"; {endless} of {len(rows)} answers hit the token limit"
    if REFERENCE in shares:
        costs = {kind: shares[REFERENCE] - value for kind, value in shares.items() if kind != REFERENCE}
        if not costs:
            return f"only {REFERENCE} was asked{tail}"
        worst = max(costs, key=costs.__getitem__)
        met = "met" if costs[worst] <= TOLERATED else "NOT met"
        lost = f"most lost by {worst}: {100 * costs[worst]:.1f}"
        return f"aim: at most {100 * TOLERATED:.0f} points lost: {met}; {lost}{tail}"
    weak = [kind for kind, value in shares.items() if value < asked.each]
    met = "met" if share(rows, way) >= asked.overall and not weak else "NOT met"
    aim = f"aim: {100 * asked.overall:.0f} % in all" + (
        f", {100 * asked.each:.0f} % of each kind" if asked.each else ""
    )
    return f"{aim}: {met}" + (f"; below: {', '.join(weak)}" if weak else "") + tail


def summary(rows: list[Row], ways: list[str]) -> dict[str, Any]:
    """The same numbers for a program: per way and kind the questions, the right ones and the interval."""
    out: dict[str, Any] = {}
    for way in ways:
        for kind in (*dict.fromkeys(row["kind"] for row in rows), "all"):
            mine = [row for row in rows if kind in ("all", row["kind"])]
            right = sum(row[way]["right"] for row in mine)
            numbers = {"questions": len(mine), "right": right, "interval": wilson(right, len(mine))}
            out.setdefault(way, {})[kind] = numbers
    return out
