"""Finds the characters of a rendered prompt that users wrote.

Each user string is rendered between two secret marks. Removing the marks gives the plain text and the intervals.
Whitespace around a text stays outside the marks, so that templates that trim behave as without marks.
"""

from __future__ import annotations

import re
import secrets

Interval = tuple[int, int]


class UserMarks:
    """Marks of private-use characters and random digits, drawn at start-up; templates pass them through unchanged."""

    def __init__(self) -> None:
        secret = f"{secrets.randbelow(10**18):018d}"
        self._start = f"\ue000{secret}\ue001"
        self._end = f"\ue002{secret}\ue003"
        # A template may write marks with JSON's escapes, once or twice: {{ tools | tojson(ensure_ascii=true) }}.
        start, end = (
            rf"((?:\\+u{first:x}|{chr(first)}){secret}(?:\\+u{last:x}|{chr(last)}))"
            for first, last in ((0xE000, 0xE001), (0xE002, 0xE003))
        )
        self._any_mark = re.compile(f"{start}|{end}", re.IGNORECASE)

    def mark(self, text: str) -> str:
        body = text.strip()
        if not body:
            return text
        at = text.index(body)
        return f"{text[:at]}{self._start}{body}{self._end}{text[at + len(body) :]}"

    def unmark(self, rendered: str) -> tuple[str, list[Interval]]:
        """The text without marks, and the intervals of user characters: disjoint, in order.

        A template may cut texts and lose marks; text that could then be a user's counts as a user's.
        """
        plain: list[str] = []
        intervals: list[Interval] = []
        length = 0
        open_at: int | None = None
        pieces = self._any_mark.split(rendered)  # text, then start mark or None, end mark or None, text, ...
        for text, start, end in zip(pieces[::3], [*pieces[1::3], None], [*pieces[2::3], None], strict=True):
            plain.append(text)
            length += len(text)
            if start and open_at is None:
                open_at = length
            elif end:
                previous_end = intervals[-1][1] if intervals else 0
                intervals.append((previous_end if open_at is None else open_at, length))
                open_at = None
        if open_at is not None:
            intervals.append((open_at, length))
        return "".join(plain), intervals
