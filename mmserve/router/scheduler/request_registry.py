"""Which attempt of each request id is the current one: what makes receiving a message twice the same as once.

Remembers ended ids, but no more than ``remembered`` of them. Knows nothing of scheduling.
"""

from __future__ import annotations

from collections import OrderedDict

from mmserve.router.scheduler.sequence import Sequence


class RequestRegistry:
    """Live sequences by id and the newest attempt of ids that have ended."""

    def __init__(self, remembered: int = 16384) -> None:
        self._remembered = remembered
        self._live: dict[str, Sequence] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()

    def live(self, request_id: str) -> Sequence | None:
        """The sequence that is waiting or running under this id."""
        return self._live.get(request_id)

    def has_seen(self, request_id: str, attempt: int) -> bool:
        """True when this attempt or a newer one has begun or ended before."""
        live = self._live.get(request_id)
        newest = self._ended.get(request_id, -1) if live is None else live.request.attempt
        return attempt <= newest

    def begin(self, sequence: Sequence) -> None:
        """The sequence is its id's current attempt."""
        self._live[sequence.request.id] = sequence

    def end(self, request_id: str, attempt: int) -> None:
        """The attempt has had its terminal reply."""
        self._live.pop(request_id, None)
        self._ended[request_id] = attempt
        self._ended.move_to_end(request_id)
        if len(self._ended) > self._remembered:
            self._ended.popitem(last=False)
