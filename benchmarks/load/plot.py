"""Draws rows of figures as a PNG: one panel for each figure, one bar for each row. Needs Pillow only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from benchmarks.load.report import Row

_WIDTH, _BAR, _GAP, _LABEL, _MARGIN = 900, 18, 6, 220, 16
_COLOURS = ("#4878a8", "#d98032", "#5a9a5a", "#a05a8a", "#888888")


def draw(path: str | Path, rows: Sequence[Row], *, labels: Sequence[str], figures: Sequence[str]) -> None:
    """Write a PNG. ``labels``: columns that name a row, the last one gives its colour; ``figures``: a panel each."""
    panel = len(rows) * (_BAR + _GAP) + 3 * _MARGIN
    image = Image.new("RGB", (_WIDTH, panel * len(figures) + _MARGIN), "white")
    for index, figure in enumerate(figures):
        _panel(ImageDraw.Draw(image), _MARGIN + index * panel, rows, labels, figure)
    image.save(path, "PNG")


def _panel(canvas: ImageDraw.ImageDraw, top: int, rows: Sequence[Row], labels: Sequence[str], figure: str) -> None:
    font = ImageFont.load_default()
    values = [float(str(row.get(figure, "nan"))) for row in rows]
    largest = max([value for value in values if value == value], default=0) or 1
    kinds = list(dict.fromkeys(row.get(labels[-1]) for row in rows))
    canvas.text((_MARGIN, top), figure, fill="black", font=font)
    for index, (row, value) in enumerate(zip(rows, values, strict=True)):
        y = top + _MARGIN + index * (_BAR + _GAP)
        canvas.text((_MARGIN, y + 3), " ".join(str(row.get(label, "")) for label in labels), fill="black", font=font)
        if value != value:
            continue
        length = int((_WIDTH - _LABEL - 6 * _MARGIN) * value / largest)
        colour = _COLOURS[kinds.index(row.get(labels[-1])) % len(_COLOURS)]
        canvas.rectangle((_LABEL, y, _LABEL + length, y + _BAR), fill=colour)
        canvas.text((_LABEL + length + 6, y + 3), f"{value:.3g}", fill="black", font=font)
