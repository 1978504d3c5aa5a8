"""Line charts as SVG, written by hand so that a report needs no script and no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 44
_COLOURS = ("#3568a8", "#c8641c", "#3b8a4a", "#8e4a9e", "#777777")
_KEY_HEIGHT = 16
"""Of a series' name, below the chart, where it covers no line."""
_MAX_POINTS = 400


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]


def chart(title: str, x_label: str, y_label: str, series: Sequence[Series], *, dots: bool = False) -> str:
    """One chart. Values below 0, and those that are not finite, are left out. Texts are escaped."""
    finite = [
        Series(one.name, [p for p in _thinned(one.points) if all(math.isfinite(v) and v >= 0 for v in p)])
        for one in series
    ]
    largest_x = _rounded_up(max((x for one in finite for x, _ in one.points), default=1))
    largest_y = _rounded_up(max((y for one in finite for _, y in one.points), default=1))

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = x / largest_x, y / largest_y
        return (
            round(_LEFT + across * (_WIDTH - _LEFT - _RIGHT), 1),
            round(_HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM), 1),
        )

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _KEY_HEIGHT * len(finite)}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{_LEFT}" y="18">{escape(title)}</text>',
    ]
    for step in range(5):
        x, y = largest_x * step / 4, largest_y * step / 4
        (at_x, bottom), (left, at_y) = place(x, 0), place(0, y)
        parts.append(f'<line class="grid" x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{at_y}" y2="{at_y}"/>')
        parts.append(f'<text class="tick" x="{at_x}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{at_y + 4}" text-anchor="end">{y:g}</text>')
    right = _WIDTH - _RIGHT
    parts.append(f'<text class="label" x="{right}" y="{_HEIGHT - 8}" text-anchor="end">{escape(x_label)}</text>')
    parts.append(f'<text class="label" x="{right}" y="18" text-anchor="end">{escape(y_label)}</text>')
    for index, one in enumerate(finite):
        colour = _COLOURS[index % len(_COLOURS)]
        placed = [place(*point) for point in one.points]
        line = " ".join(f"{x},{y}" for x, y in placed)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        if dots:
            parts += [
                f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"><title>{escape(one.name)}: {at[0]:.4g}, {at[1]:.4g}'
                "</title></circle>"
                for (x, y), at in zip(placed, one.points, strict=True)
            ]
        key_y = _HEIGHT + _KEY_HEIGHT * index + 9
        parts.append(f'<rect x="{_LEFT + 10}" y="{key_y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text class="key" x="{_LEFT + 26}" y="{key_y}">{escape(one.name)}</text>')
    return "\n".join([*parts, "</svg>"])


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(points) <= _MAX_POINTS:
        return points
    return [points[round(place * (len(points) - 1) / (_MAX_POINTS - 1))] for place in range(_MAX_POINTS)]


def _rounded_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 and their tenfold."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if value <= step * power * (1 + 1e-9))
