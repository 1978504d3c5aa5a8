"""Finds the first stop string in text that arrives in pieces. Pure.

Text that may be the start of a stop string is held back until the next piece. Each stop string is matched by the
algorithm of Knuth, Morris and Pratt, so that the work is proportional to the text's length, however long the stop
strings are and however much is held back.
"""

from __future__ import annotations


class StopStrings:
    """The text returned by ``push`` and ``flush`` ends before the first stop string; behind it if ``include``."""

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._include = include
        self._matchers = [_Matcher(stop) for stop in stops]
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text: the one that starts first."""

    def push(self, piece: str) -> tuple[str, bool]:
        """Text that may be shown, and True if a stop string is complete (then do not call ``push`` again)."""
        if not self._matchers:
            return piece, False
        found = [(start, matcher.stop) for matcher in self._matchers if (start := matcher.push(piece)) is not None]
        text = self._held + piece
        if found:
            start, self.matched = min(found)
            end = start + len(self.matched) if self._include else start
            shown, self._held = text[: len(self._held) + end], ""
            return shown, True
        shown_chars = len(text) - max(matcher.num_matched for matcher in self._matchers)
        self._held = text[shown_chars:]
        return text[:shown_chars], False

    def flush(self) -> str:
        """Text that was held back. Call once no more text can come."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Finds one stop string. ``num_matched``: how much of its beginning the text ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._borders = [0, 0]
        """Length of the longest proper border (prefix that is also a suffix) of the first 0, 1, ... characters.

        Computed as far as the text has matched: most stop strings are never reached beyond their first characters.
        """

    def push(self, piece: str) -> int | None:
        """Where the first occurrence that ends in ``piece`` starts, counted from the start of ``piece``."""
        stop, matched, at = self.stop, self.num_matched, 0
        while at < len(piece):
            if not matched:
                at = piece.find(stop[0], at)
                if at < 0:
                    break
            elif piece[at] != stop[matched]:
                matched = self._border(matched)
                continue
            matched += 1
            at += 1
            if matched == len(stop):
                return at - matched
        self.num_matched = matched
        return None

    def _border(self, length: int) -> int:
        stop, borders = self.stop, self._borders
        while len(borders) <= length:
            symbol, border = stop[len(borders) - 1], borders[-1]
            while border and stop[border] != symbol:
                border = borders[border]
            borders.append(border + (stop[border] == symbol))
        return borders[length]
