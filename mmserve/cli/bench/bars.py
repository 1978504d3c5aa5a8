"""Stacked bars as SVG: one bar for each row, one part for each of its values. Needs no script and no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _BAR, _GAP, _TOP, _KEY_LINE = 1120, 22, 26, 34, 18
_KEY_WIDTH = 140
_COLOURS = (
    "#3568a8", "#c8641c", "#3b8a4a", "#8e4a9e", "#777777", "#b8901f", "#2a8f95",
    "#b04a6a", "#5d6bc0", "#7d9a2c", "#96644a", "#4f7f9f", "#a05fb5", "#bbbbbb",
)  # fmt: skip


@dataclass(frozen=True)
class Bar:
    label: str
    parts: Mapping[str, float]


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """One chart, its bars to one scale. Values are 0 or more. Texts are escaped."""
    names = list(dict.fromkeys(name for row in rows for name in row.parts))
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
    longest = max(sum(row.parts.values()) for row in rows) or 1.0
    keys_in_line = _WIDTH // _KEY_WIDTH
    keys_top = _TOP + len(rows) * (_BAR + _GAP)
    height = keys_top + _KEY_LINE * -(-len(names) // keys_in_line)
    made = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="0" y="18">{escape(title)}</text>',
    ]
    for index, row in enumerate(rows):
        top, x, total = _TOP + index * (_BAR + _GAP), 0.0, sum(row.parts.values())
        made.append(f'<text class="label" x="0" y="{top + 12}">{escape(row.label)}: {total:.4g} {escape(unit)}</text>')
        for name, value in row.parts.items():
            width = _WIDTH * value / longest
            made.append(
                f'<rect x="{x:.1f}" y="{top + 17}" width="{width:.1f}" height="{_BAR}" fill="{colours[name]}">'
                f"<title>{escape(name)}: {value:.4g} {escape(unit)}</title></rect>"
            )
            x += width
    for index, (name, colour) in enumerate(colours.items()):
        x, y = index % keys_in_line * _KEY_WIDTH, keys_top + _KEY_LINE * (index // keys_in_line)
        made.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        made.append(f'<text class="key" x="{x + 16}" y="{y + 9}">{escape(name)}</text>')
    return "\n".join([*made, "</svg>"])
