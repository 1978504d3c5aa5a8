"""The goals of the GPU path, each a pure function of the results; tables of steps, goals and of two runs. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.results import Result, figures

Found = Sequence[Result]
Rows = list[dict[str, Any]]
_ENGINE, _SERVER, _TOKENS = 5, 6, 3


def _of_floor(check: str) -> Callable[[Found], float | None]:
    return lambda found: figures(found, _ENGINE, check).get("of the floor")


def _same_tokens(found: Found) -> float | None:
    """Part of the families whose tokens are the CPU's; of those that could be compared."""
    verdicts = [
        check["verdict"]
        for result in found
        if result["step"] == _TOKENS
        for check in result["checks"]
        if check["name"].startswith("float32,") and check["verdict"] != "skipped"
    ]
    return verdicts.count("pass") / len(verdicts) if verdicts else None


def _fp8_gain(found: Found) -> float | None:
    """Tokens/s at batch 1 over those in bfloat16."""
    rates = [figures(found, _ENGINE, f"Llama-3.1-8B{fp8}, decode, 1").get("tokens/s") for fp8 in (", FP8", "")]
    return rates[0] / rates[1] if rates[0] and rates[1] else None


def _idle(found: Found) -> float | None:
    """By events where steps are graphs: a profiler slows the host down."""
    about = figures(found, _ENGINE, "Llama-3.1-8B, decode, 64")
    idle = about.get("idle of the device, by events", about.get("idle of the device"))
    return None if idle is None else 1 - idle


def _load_rate(found: Found) -> float | None:
    """Bytes a second of weights in the page cache."""
    return figures(found, _SERVER, "Qwen2.5-VL-7B, start").get("bytes/s of loading")


def _starts(found: Found) -> float | None:
    """Of a second, how often a server with graphs could start."""
    seconds = figures(found, _SERVER, "Qwen2.5-1.5B, start").get("s to ready")
    return 1 / seconds if seconds else None


def _beside_tower(found: Found) -> float | None:
    return figures(found, _ENGINE, "Llama-3.1-8B, decode beside a tower").get("alone over bounded")


def _inter_token(found: Found) -> float | None:
    """ITL p99 of text alone over that beside pictures: 1 / 1.3 at the limit."""
    beside = figures(found, _SERVER, "text beside pictures")
    return beside["itl_p99_ms_alone"] / beside["itl_p99_ms"] if beside.get("itl_p99_ms") else None


GOALS: tuple[tuple[str, float, Callable[[Found], float | None]], ...] = (
    ("tokens of the families in float32 are the CPU's", 1.0, _same_tokens),
    ("8B, decode at batch 1, of the floor", 0.75, _of_floor("Llama-3.1-8B, decode, 1")),
    ("8B, decode at batch 64, of the floor", 0.75, _of_floor("Llama-3.1-8B, decode, 64")),
    ("8B in FP8, decode at batch 1, over bfloat16", 1.6, _fp8_gain),
    ("8B, prompt of 8k, of the products' rate", 0.60, _of_floor("Llama-3.1-8B, prompt of 8192")),
    ("tower of Qwen2.5-VL-7B, of the products' rate", 0.50, _of_floor("Qwen2.5-VL-7B, tower")),
    ("8B, batch 64, the device works between decode steps", 0.95, _idle),
    ("bytes/s of weights from the page cache, for an 8B in 10 s", 1.606e9, _load_rate),
    ("starts a second of a server with graphs, for one in 30 s", 1 / 30, _starts),
    ("8B, batch 64, the slowest steps alone over those beside a tower", 1 / 1.3, _beside_tower),
    ("ITL p99 of text alone over beside pictures", 1 / 1.3, _inter_token),
)
"""(what, at least, its value; None: not measured)."""


def rows(found: Found) -> Rows:
    """The goals with what was measured."""
    return [_row(what, goal, value(found)) for what, goal, value in GOALS]


def _row(what: str, goal: float, got: float | None) -> dict[str, Any]:
    met = "not measured" if got is None else "yes" if got >= goal else "no"
    return {"goal": what, "at least": goal, "got": got, "met": met}


def table(goals: Rows) -> str:
    """As Markdown."""
    lines = ["| goal | at least | got | met |", "|---|---|---|---|"]
    for goal in goals:
        got = "" if goal["got"] is None else f"{goal['got']:.3g}"
        lines.append(f"| {goal['goal']} | {goal['at least']:.3g} | {got} | {goal['met']} |")
    return "\n".join(lines)


def steps_table(found: Found) -> str:
    """As Markdown: verdicts, and why."""
    lines = ["| step | verdict | s | |", "|---|---|---|---|"]
    for result in found:
        name = f"{result['step']} {result['name']}"
        lines.append(f"| {name} | {result['verdict']} | {result['seconds']:.0f} | {result['reason']} |")
    return "\n".join(lines)


def comparison(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Figures that both runs have, and their ratio."""
    before, after = dict(_numbers(old)), dict(_numbers(new))
    lines = ["| figure | old | new | new / old |", "|---|---|---|---|"]
    for name in before:
        if name in after:
            ratio = f"{after[name] / before[name]:.2f}" if before[name] else ""
            lines.append(f"| {name} | {before[name]:.4g} | {after[name]:.4g} | {ratio} |")
    return "\n".join(lines)


def _numbers(run: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for result in run["steps"]:
        for check in result["checks"]:
            for name, value in check.get("figures", {}).items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield f"{check['name']}: {name}", value
