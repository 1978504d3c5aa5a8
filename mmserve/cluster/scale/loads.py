"""How loaded each replica is: its last report, and what this front has sent there since.

A report is older than what the front has done meanwhile. So each request counts from the moment it is sent until a
report comes that must have seen it; otherwise all requests between two reports would go to the same replica. Without
reports it counts for a minute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mmserve.cluster.scale.reports import Load

_FORGOTTEN_S = 60.0
"""Of a replica that does not report, nobody says when a request has ended."""
_UNSEEN_S = 0.05
"""A report may have been made before requests that were sent this long ago arrived at the replica."""


@dataclass
class ReplicaLoad:
    """Of one replica. ``sent_s``: seconds of work that this front has sent there since the last report."""

    reported: Load = field(default_factory=Load)
    reported_at_s: float = float("-inf")
    sent_s: float = 0.0
    _sent: deque[tuple[float, float]] = field(default_factory=deque)
    """When, and how much."""

    @property
    def wait_s(self) -> float:
        """Until a new request's first step."""
        beyond_slots = max(0, min(len(self._sent), self.in_flight - self.reported.slots))
        return self.reported.wait_s + self.sent_s + beyond_slots * self.reported.request_s

    @property
    def in_flight(self) -> int:
        """Requests there, as far as this front knows."""
        return self.reported.in_flight + len(self._sent)

    def send(self, work_s: float, now_s: float) -> None:
        """A request was sent there."""
        self._forget(now_s - _FORGOTTEN_S)
        self._sent.append((now_s, work_s))
        self.sent_s += work_s

    def report(self, load: Load, now_s: float) -> None:
        """The replica has told its load."""
        self.reported, self.reported_at_s = load, now_s
        self._forget(now_s - _UNSEEN_S)

    def _forget(self, until_s: float) -> None:
        while self._sent and self._sent[0][0] <= until_s:
            self.sent_s -= self._sent.popleft()[1]
        if not self._sent:
            self.sent_s = 0.0  # no rounding errors are left
