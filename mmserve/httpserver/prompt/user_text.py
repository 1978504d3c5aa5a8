"""Tells, in a rendered conversation, which characters users wrote and which the template did.

Each user text is rendered between two marks that nobody can guess; taking them out again gives the plain text and
the intervals. Blanks around a text stay outside the marks, so that templates which trim do what they always do.
"""

from __future__ import annotations

import re
import secrets

Interval = tuple[int, int]


class UserMarks:
    """Marks of private-use characters and random digits, drawn per worker start; templates cannot upset those."""

    def __init__(self) -> None:
        secret = f"{secrets.randbelow(10**18):018d}"
        self._start = f"\ue000{secret}\ue001"
        self._end = f"\ue002{secret}\ue003"
        self._either = re.compile(f"({self._start}|{self._end})")

    def mark(self, text: str) -> str:
        body = text.strip()
        if not body:
            return text
        at = text.index(body)
        return f"{text[:at]}{self._start}{body}{self._end}{text[at + len(body) :]}"

    def unmark(self, rendered: str) -> tuple[str, list[Interval]]:
        """The text without marks, and where users' characters are in it: disjoint, in order.

        A template may cut texts up and lose marks; what then might be a user's counts as a user's.
        """
        plain: list[str] = []
        intervals: list[Interval] = []
        length = 0
        opened: int | None = None
        for piece in self._either.split(rendered):
            if piece == self._start:
                opened = length if opened is None else opened
            elif piece == self._end:
                lost = intervals[-1][1] if intervals else 0
                intervals.append((lost if opened is None else opened, length))
                opened = None
            else:
                plain.append(piece)
                length += len(piece)
        if opened is not None:
            intervals.append((opened, length))
        return "".join(plain), intervals
