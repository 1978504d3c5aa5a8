"""Which replicas hold which names, from the replicas' own reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmserve.cluster.scale import reports


@dataclass
class _Held:
    """Of one replica. ``number``: of the last report that was applied; None: a snapshot is needed."""

    epoch: int | None = None
    number: int | None = None
    names: set[int] = field(default_factory=set)


class HoldingsTable:
    """Of one kind. ``apply`` says whether the table is up to date with the replica."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._holders: dict[int, list[str]] = {}

    def __len__(self) -> int:
        """Names that any replica holds."""
        return len(self._holders)

    def holders(self, name: int) -> list[str]:
        """In no order. Not to be changed."""
        return self._holders.get(name, _NOBODY)

    def is_held(self, name: int) -> bool:
        """By any replica."""
        return name in self._holders

    def names(self, replica: str) -> set[int]:
        """Not to be changed."""
        held = self._held.get(replica)
        return _NOTHING if held is None else held.names

    def apply(self, replica: str, report: reports.Holdings) -> bool:
        """False if reports were missed: the caller asks for a snapshot. Until it comes, what is known stays in use,
        but what a replica held before it started again is forgotten at once. A repeated report changes nothing."""
        held = self._held.setdefault(replica, _Held())
        if report.epoch != held.epoch:
            self._replace(replica, held, set())
            held.epoch, held.number = report.epoch, None
        if report.snapshot:
            if held.number is None or report.number >= held.number:
                self._replace(replica, held, set(report.added))
                held.number = report.number
            return True
        if held.number is None or report.number > held.number + 1:
            held.number = None
            return False
        if report.number == held.number + 1:
            held.number = report.number
            self._remove(replica, held, held.names.intersection(report.removed))
            self._add(replica, held, set(report.added) - held.names)
        return True

    def forget(self, replica: str) -> None:
        """It has left, or what it holds is no longer believed."""
        if (held := self._held.pop(replica, None)) is not None:
            self._remove(replica, held, set(held.names))

    def _replace(self, replica: str, held: _Held, names: set[int]) -> None:
        self._remove(replica, held, held.names - names)
        self._add(replica, held, names - held.names)

    def _add(self, replica: str, held: _Held, names: set[int]) -> None:
        held.names |= names
        for name in names:
            self._holders.setdefault(name, []).append(replica)

    def _remove(self, replica: str, held: _Held, names: set[int]) -> None:
        held.names -= names
        for name in names:
            holders = self._holders[name]
            holders.remove(replica)
            if not holders:
                del self._holders[name]


_NOBODY: list[str] = []
_NOTHING: set[int] = set()
