"""How loaded each replica is: its last report, and what this front has sent there since.

A report is older than what the front has done meanwhile. So each request counts from the moment it is sent until a
report comes that must have seen it; otherwise all requests between two reports would go to the same replica. Without
reports it counts for a minute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mmserve.cluster.scale.reports import Load

FORGOTTEN_S = 60.0
"""Of a replica that does not report, nobody says when a request has ended."""
_UNSEEN_S = 0.05
"""A report may have been made before requests that were sent this long ago arrived at the replica."""


@dataclass(slots=True)
class ReplicaLoad:
    """Of one replica. ``wait_s`` and ``in_flight`` are computed when they change, for each decision reads them."""

    reported: Load = field(default_factory=Load)
    reported_at_s: float = float("-inf")
    wait_s: float = 0.0
    """Until a new request's first step."""
    in_flight: int = 0
    """Requests there, as far as this front knows."""
    _sent_s: float = 0.0
    """Seconds of work that this front has sent there since the last report."""
    _sent: deque[tuple[float, float]] = field(default_factory=deque)
    """When, and how much."""

    @property
    def oldest_s(self) -> float | None:
        """When the oldest request that counts was sent there; None if none counts."""
        return self._sent[0][0] if self._sent else None

    def send(self, work_s: float, now_s: float) -> None:
        """A request was sent there."""
        self._forget(now_s - FORGOTTEN_S)
        self._sent.append((now_s, work_s))
        self._sent_s += work_s
        self._compute()

    def withdraw(self, work_s: float) -> None:
        """A request with so much work is not sent there after all. Nothing happens if a report has counted since."""
        for index in reversed(range(len(self._sent))):
            if self._sent[index][1] == work_s:
                del self._sent[index]
                self._sent_s -= work_s
                return self._compute()

    def report(self, load: Load, now_s: float) -> None:
        """The replica has told its load."""
        self.reported, self.reported_at_s = load, now_s
        self._forget(now_s - _UNSEEN_S)
        self._compute()

    def forget_old(self, now_s: float) -> None:
        """What was sent there more than a minute ago no longer counts."""
        self._forget(now_s - FORGOTTEN_S)
        self._compute()

    def _forget(self, until_s: float) -> None:
        while self._sent and self._sent[0][0] <= until_s:
            self._sent_s -= self._sent.popleft()[1]
        if not self._sent:
            self._sent_s = 0.0  # no rounding errors are left

    def _compute(self) -> None:
        load, num_sent = self.reported, len(self._sent)
        self.in_flight = load.in_flight + num_sent
        beyond_slots = max(0, min(num_sent, self.in_flight - load.slots))
        self.wait_s = load.wait_s + self._sent_s + beyond_slots * load.request_s
