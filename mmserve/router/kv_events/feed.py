"""The events of one router process: records, numbers and publishes them."""

from __future__ import annotations

import time
from collections.abc import Callable

from mmserve.config.fields import EventFormat
from mmserve.ipc.events.publisher import Publisher
from mmserve.router.kv_events.recorder import BlockRecorder
from mmserve.router.kv_events.wire import AllBlocksCleared, Event, encode


class EventFeed:
    """``planned`` and ``computed`` are called by the router's loop; ``recorder`` listens to the prefix cache."""

    def __init__(
        self,
        publisher: Publisher,
        recorder: BlockRecorder,
        form: EventFormat,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``now``: seconds since 1970."""
        self.recorder = recorder
        self._publisher = publisher
        self._form = form
        self._now = now
        self._number = 0
        self._publish([AllBlocksCleared()])

    def planned(self) -> None:
        """A plan was made."""
        self.recorder.planned()

    def computed(self) -> None:
        """The result of the oldest plan was applied."""
        if events := self.recorder.computed():
            self._publish(events)

    def _publish(self, events: list[Event]) -> None:
        self._publisher.publish(self._number, encode(events, self._now(), self._form))
        self._number += 1
