"""Learning curves as a picture: what the stages wrote while they ran, one panel a stage, in an SVG file.

Reads `*.jsonl` of a run's folder (`training.stages.common.Log`); knows nothing about models.

    python -m training.curves --out runs
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STAGES = {
    "eye": "A: the eye",
    "language": "B: language on exact codes",
    "tally": "A2: counting",
    "joint": "C: the join",
    "tools": "D: calls and JSON",
}
PALETTE = (
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#444444",
    "#000080", "#b05050", "#5f9ea0", "#556b2f",
)  # fmt: skip
WIDTH, HEIGHT, LEFT, GAP, KEY = 620, 230, 46, 50, 190
Point = tuple[float, float]


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log that are whole."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # being written
            continue


def series(rows: list[dict[str, Any]]) -> dict[str, list[Point]]:
    """Held-out shares by name over steps; "loss" scaled by its first value."""
    out: dict[str, list[Point]] = {}
    first = next((row["loss"] for row in rows if row.get("loss")), 1.0)
    for row in rows:
        if "loss" in row and math.isfinite(row["loss"]):
            out.setdefault("loss (of the first)", []).append((row["step"], min(1.0, row["loss"] / first)))
        for name, value in row.get("held_out", {}).items():
            out.setdefault(name, []).append((row["step"], min(1.0, value)))
    return out


def panel(title: str, top: float, lines: dict[str, list[Point]]) -> list[str]:
    """One stage: axes, lines, names with their last values."""
    last = max((x for points in lines.values() for x, _ in points), default=1) or 1
    out = [f'<text x="{LEFT}" y="{top - 8}" font-size="14">{title}, {last:.0f} steps</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + HEIGHT * (1 - share)
        out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{share:.2f}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = PALETTE[number % len(PALETTE)] if name[:4] != "loss" else "#bbb"
        path = " ".join(f"{LEFT + WIDTH * x / last:.1f},{top + HEIGHT * (1 - y):.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        label = f"{name} {points[-1][1]:.2f}"
        y = top + 6 + number * 15
        out.append(f'<text x="{LEFT + WIDTH + 14}" y="{y:.0f}" fill="{colour}">{label}</text>')
    return out


def draw(folder: Path) -> Path:
    """Writes `curves.svg` into a run's folder; a reader never sees half of it."""
    found = {stage: series(list(rows_of(path))) for stage in STAGES if (path := folder / f"{stage}.jsonl").exists()}
    height = GAP + len(found) * (HEIGHT + GAP)
    body = [line for number, (stage, lines) in enumerate(found.items())
            for line in panel(STAGES[stage], GAP + number * (HEIGHT + GAP), lines)]  # fmt: skip
    width = LEFT + WIDTH + KEY
    box = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    path = folder / "curves.svg"
    partial = path.with_suffix(".partial")
    partial.write_text(
        "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *body, "</svg>"]) + "\n"
    )
    partial.replace(path)
    return path


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    print(draw(parser.parse_args().out))


if __name__ == "__main__":
    main()
