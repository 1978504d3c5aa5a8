"""Finds the first stop string in text that arrives in pieces. Pure.

Text that may be the start of a stop string is held back until the next piece.
"""

from __future__ import annotations


class StopStrings:
    """The text returned by ``push`` and ``flush`` contains no stop string and nothing after one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Text that may be shown, and True if a stop string is complete (then do not call ``push`` again)."""
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
        """Text that was held back. Call once no more text can come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
