"""Finds the first stop string in text that arrives in pieces. Knows no tokens.

Text that may be the beginning of a stop string is held back until the next piece decides.
"""

from __future__ import annotations


class StopStrings:
    """Feed with ``push``; what comes out never contains a stop string nor anything after one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string was completed (then push no more)."""
        if not self._stops:
            return piece, False
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held back, once no more text can come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
