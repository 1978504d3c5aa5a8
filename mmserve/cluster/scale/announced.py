"""A set of names that its holder announces: the names, and what has changed since the last report. Pure."""

from __future__ import annotations

from mmserve.cluster.scale.reports import Holdings, Kind


class Announced:
    """``epoch``: of its reports; another one at each start of the holder."""

    def __init__(self, kind: Kind, epoch: int) -> None:
        self.names: set[int] = set()
        """Not to be changed."""
        self._kind = kind
        self._epoch = epoch
        self._number = -1
        self._added: set[int] = set()
        """Since the last report, as ``_removed``."""
        self._removed: set[int] = set()

    def add(self, name: int) -> None:
        """It is held now."""
        if name not in self.names:
            self.names.add(name)
            _note(name, self._added, self._removed)

    def discard(self, name: int) -> None:
        """It is not held any more."""
        if name in self.names:
            self.names.remove(name)
            _note(name, self._removed, self._added)

    def report(self, *, snapshot: bool) -> Holdings:
        """What has changed since the last call, perhaps nothing: its number shows who has missed one.

        ``snapshot``, and the first time: all that is held.
        """
        self._number += 1
        if snapshot or not self._number:
            report = Holdings(self._kind, self._epoch, self._number, tuple(self.names), snapshot=True)
        else:
            report = Holdings(self._kind, self._epoch, self._number, tuple(self._added), tuple(self._removed))
        self._added.clear()
        self._removed.clear()
        return report


def _note(name: int, here: set[int], there: set[int]) -> None:
    """It came or went; if it had gone or come since the last report, nothing has changed."""
    if name in there:
        there.remove(name)
    else:
        here.add(name)
