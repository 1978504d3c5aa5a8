"""Turns records into one row of figures, and rows into a table and a JSON file. Shared by all benchmarks."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load.memory import MIB, Peak
from mmserve.cli.bench.client import Record

Row = dict[str, object]


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest-rank percentile, q in 0..1; nan for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))] if ordered else float("nan")


def row(records: Sequence[Record], wall_s: float) -> dict[str, float]:
    """The figures of one run; times in ms."""
    good = [record for record in records if not record.error]
    gaps = [gap * 1e3 for record in good for gap in record.gaps_s]
    ttft = [record.ttft_s * 1e3 for record in good]
    return {
        "ok": len(good),
        "errors": len(records) - len(good),
        "ttft_p50_ms": percentile(ttft, 0.5),
        "ttft_p99_ms": percentile(ttft, 0.99),
        "itl_p50_ms": percentile(gaps, 0.5),
        "itl_p99_ms": percentile(gaps, 0.99),
        "tokens_per_s": sum(record.output_tokens for record in good) / wall_s,
        "requests_per_s": len(good) / wall_s,
        "prompt_tokens": statistics.fmean(record.prompt_tokens for record in good) if good else 0.0,
        "cached_tokens": statistics.fmean(record.cached_tokens for record in good) if good else 0.0,
    }


def memory(peak: Peak) -> dict[str, float]:
    """The memory of one run, in MiB."""
    return {"peak_mib": peak.peak_nbytes / MIB, "growth_mib": peak.growth_nbytes / MIB}


def median_row(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median of each figure over the repeats."""
    return {name: statistics.median(each[name] for each in rows) for name in rows[0]}


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, columns in the order of the first row."""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(each.get(column, "")) for column in columns) + " |" for each in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def at_most(figure: str, setting: str, got: float, limit: float) -> Row:
    """One row of a table of targets."""
    return _target(figure, setting, got, f"at most {limit:.3g}", got <= limit)


def at_least(figure: str, setting: str, got: float, limit: float) -> Row:
    """One row of a table of targets."""
    return _target(figure, setting, got, f"at least {limit:.3g}", got >= limit)


def _target(figure: str, setting: str, got: float, target: str, met: bool) -> Row:
    return {"figure": figure, "setting": setting, "got": got, "target": target, "met": "yes" if met else "no"}


def machine() -> str:
    """One line that describes the machine."""
    models = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {len(models)} cores, Python {platform.python_version()}"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def write_json(path: str | None, rows: Sequence[Row]) -> None:
    """Write {"machine", "rows"} when a path is given."""
    if path:
        Path(path).write_text(json.dumps({"machine": machine(), "rows": list(rows)}, indent=1))
