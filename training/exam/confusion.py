"""The confusion of kinds as a picture: for each kind asked, what sort of thing was answered, and how often rightly.

An SVG file, written as text.  Each row is a kind of question; its cells are the sorts of answer, darker for more; the
first column is the share of right answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from training.exam.report import Row
from training.pictures.world import BACKGROUND_NAMES, COLOUR_NAMES, SHAPES, SIZES
from training.words.conversations import NO_PICTURE

WORD = "[a-z]+"
SORTS: dict[str, str] = {
    "colour": "|".join(COLOUR_NAMES),
    "background": "|".join(BACKGROUND_NAMES),
    "shape": "|".join(SHAPES),
    "size": "|".join(SIZES),
    "digits": r"\d+",
    "letters": "[A-Z]+",
    "yes or no": "yes|no",
    "side": "left|right|above|below",
    "quarter": "(top|bottom) (left|right)",
    "which one": "the (first|second)",
    "list": r"(the (number|word) |no |one |two |three |four |five |six |seven ).*",
    "not there": "There is no .*",
    "no picture": re.escape(NO_PICTURE),
    "sentence": r"[A-Z].*[.!]",
    "other": ".*",
}
LEFT, TOP, CELL_WIDTH, CELL_HEIGHT = 110, 96, 56, 26


def sort_of(answer: str) -> str:
    """The first sort that an answer fits."""
    return next(name for name, form in SORTS.items() if re.fullmatch(form, answer.strip(), re.DOTALL))


def shade(share: float) -> str:
    """White for none, dark blue for all."""
    return "#{:02x}{:02x}{:02x}".format(*(round(255 - (255 - end) * share**0.6) for end in (18, 60, 130)))


def text(x: float, y: float, words: str, dark: bool = True, **style: str) -> str:
    """A line of text."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{"#222" if dark else "#fff"}"{attributes}>{escaped}</text>'


def line(number: int, kind: str, rows: Sequence[Row], way: str) -> list[str]:
    """One kind's cells."""
    found = Counter(sort_of(row[way]["text"]) for row in rows)
    right = sum(row[way]["right"] for row in rows) / len(rows)
    y = TOP + number * CELL_HEIGHT
    out = [text(LEFT - 8, y + 17, f"{kind} ({len(rows)})", text_anchor="end")]
    for column, (name, share) in enumerate([("right", right), *((s, found[s] / len(rows)) for s in SORTS)]):
        x = LEFT + column * CELL_WIDTH + (10 if column else 0)
        fill = "#2a7d3f" if name == "right" and share >= 0.9 else "#b3541e" if name == "right" else shade(share)
        out.append(f'<rect x="{x}" y="{y}" width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}" fill="{fill}"/>')
        if share:
            dark = name != "right" and share < 0.45
            out.append(text(x + CELL_WIDTH / 2 - 1, y + 17, f"{100 * share:.0f}", dark, text_anchor="middle"))
    return out


def draw(rows: list[Row], way: str, title: str) -> str:
    """The SVG of a set's rows."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    width = LEFT + (len(SORTS) + 1) * CELL_WIDTH + 30
    height = TOP + len(kinds) * CELL_HEIGHT + 12
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(12, 22, title, font_size="15"),
        text(12, 40, "per cent of each kind's questions; rows: what was asked, columns: what was answered"),
    ]
    for column, name in enumerate(("right", *SORTS)):
        x = LEFT + column * CELL_WIDTH + (10 if column else 0) + CELL_WIDTH / 2
        out.append(text(x, TOP - 8, name, transform=f"rotate(-30 {x:.0f} {TOP - 8})"))
    for number, kind in enumerate(kinds):
        out += line(number, kind, [row for row in rows if row["kind"] == kind], way)
    return "\n".join([*out, "</svg>"]) + "\n"
