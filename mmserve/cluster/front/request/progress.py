"""How far one request's stream has come: what the client has, and what another replica needs to go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmserve.messages.relay import GIVEN_UP, SampledSoFar, packed_of

_END = b"\n\n"
_PING = b"event: ping\n"


class EventSplitter:
    """Cuts a stream of server-sent events into whole ones. Bytes of an event whose end has not come are kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now, each with its empty line."""
        *events, self._rest = (self._rest + data).split(_END)
        return [event + _END for event in events]


@dataclass
class Progress:
    """``num_events``: events that the client has. ``sampled``: the tokens that they, and perhaps more, are made of."""

    num_events: int = 0
    given_up: bool = False
    """The replica has said that it cannot go on."""
    sampled: SampledSoFar = field(default_factory=SampledSoFar)
    _splitter: EventSplitter = field(default_factory=EventSplitter)

    def restart(self) -> None:
        """Another replica goes on; a part of an event from the last one is dropped."""
        self._splitter = EventSplitter()
        self.given_up = False

    def take(self, data: bytes) -> bytes:
        """What the client gets of these bytes from a replica: whole events. A damaged comment raises ValueError or
        msgspec.DecodeError; then nothing of these bytes counts."""
        events = self._splitter.feed(data)
        if GIVEN_UP in events:
            self.given_up = True
            events = events[: events.index(GIVEN_UP)]
        comments = [packed_of(event) for event in events]
        shown = [event for event, comment in zip(events, comments, strict=True) if comment is None]
        for comment in comments:
            if comment is not None:
                self.sampled.add(comment)
        self.num_events += sum(not event.startswith(_PING) for event in shown)
        return b"".join(shown)
