"""Published changes that subscribers can ask to hear from the start: an XPUB hears who subscribes, a SUB asks again.

ZeroMQ subscribes again by itself after each new connection. So whichever of the two starts again, they meet with a
question for a snapshot, and nobody repeats snapshots that nobody needs.
"""

from __future__ import annotations

from typing import Any

import zmq

_QUESTION = b"snapshot"
"""A topic of which nothing is published. To subscribe to it is the question."""
_SUBSCRIBED = 1
"""First byte of what an XPUB receives."""


def hear_all_questions(publisher: zmq.Socket[bytes]) -> None:
    """Before ``bind``, of an XPUB: it is to hear of subscriptions that others have too."""
    publisher.setsockopt(zmq.XPUB_VERBOSE, 1)


def is_asked(publisher: zmq.Socket[bytes]) -> bool:
    """True if somebody has come, or has asked for a snapshot, since the last call."""
    found = False
    while True:
        try:
            found |= publisher.recv(zmq.NOBLOCK)[:1] == bytes([_SUBSCRIBED])
        except zmq.Again:
            return found


def ask(subscriber: zmq.Socket[Any]) -> None:
    """Ask all publishers that the SUB is connected to for a snapshot."""
    subscriber.subscribe(_QUESTION)
    subscriber.unsubscribe(_QUESTION)
