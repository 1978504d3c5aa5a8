"""Which request is why the engine dies: suspects start one at a time, and the HTTP worker is told before.

A sequence is a suspect when the engine has died SUSPECT_FROM times while computing it, and it has got no token since
(messages/request). Pure: no clock, no I/O.
"""

from __future__ import annotations

from mmserve.messages.reply import TokenReply
from mmserve.router.scheduler.sequence import Sequence, SequenceStatus


class Suspects:
    """At most one suspect is between its start and its first token, so one death shows which of them it was.

    Starts of all sequences that were computed at a death before are told: a later death then counts for those alone
    that had started, not for those that were still waiting.
    """

    def __init__(self) -> None:
        self._last: Sequence | None = None
        """The suspect that was started last."""
        self._starts: list[tuple[int, TokenReply]] = []

    def may_start(self, sequence: Sequence) -> bool:
        """False for a suspect while another one has no token yet."""
        last = self._last
        pending = last is not None and last.is_suspect and last.status is SequenceStatus.RUNNING
        return not (pending and sequence.is_suspect)

    def started(self, sequence: Sequence) -> None:
        """The next plan computes the sequence, for the first time since it began to wait."""
        if sequence.is_suspect:
            self._last = sequence
        request = sequence.request
        if request.num_deaths and sequence.first_token_s is None:
            self._starts.append((request.reply_to, TokenReply(id=request.id, attempt=request.attempt)))

    def take_starts(self) -> list[tuple[int, TokenReply]]:
        """(HTTP worker, reply) for the starts since the last call."""
        starts, self._starts = self._starts, []
        return starts
