"""Which messages the router handles while a step is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mmserve.messages.request import EngineInbound, ImagesEncoded, WorkerDied
from mmserve.router.inbox import Inbox
from tests.unit.router.builders import abort, request


class Arriving:
    """A receiver; ``arrive`` puts messages into it."""

    def __init__(self, *messages: EngineInbound) -> None:
        self.messages = list(messages)
        self.blocked: list[bool] = []

    def drain(self, *, block: bool, timeout_s: float | None = None) -> list[EngineInbound]:
        self.blocked.append(block)
        messages, self.messages = self.messages, []
        return messages


def _inbox(*messages: EngineInbound) -> tuple[Inbox, Arriving]:
    receiver: Any = Arriving(*messages)
    return Inbox(receiver), receiver


NEW = request("new", [1])
ENCODED = ImagesEncoded(id="old", attempt=0, item_ids=(1,))
LATE: Sequence[EngineInbound] = (abort("old"), request("old", [1], attempt=1), WorkerDied(worker=0, died_s=1.0))


def test_requests_and_encoded_images_are_early() -> None:
    inbox, _ = _inbox(NEW, ENCODED)
    assert inbox.take_early() == [NEW, ENCODED]
    assert not inbox.is_held


def test_what_ends_a_sequence_waits_and_is_not_overtaken() -> None:
    for late in LATE:
        inbox, _ = _inbox(NEW, late, ENCODED)
        assert inbox.take_early() == [NEW]
        assert inbox.is_held
        assert inbox.take(block=True, timeout_s=9.0) == [late, ENCODED]
        assert not inbox.is_held


def test_messages_that_were_held_are_not_waited_for() -> None:
    inbox, receiver = _inbox(LATE[0])
    assert inbox.take_early() == []
    receiver.messages.append(NEW)
    inbox.take(block=True, timeout_s=9.0)
    inbox.take(block=True, timeout_s=9.0)
    assert receiver.blocked == [False, False, True]


@given(st.lists(st.one_of(st.sampled_from([NEW, ENCODED, *LATE]), st.sampled_from(["early", "take"])), max_size=30))
def test_every_message_comes_once_in_order_and_ends_nothing_early(events: list[Any]) -> None:
    inbox, receiver = _inbox()
    arrived: list[EngineInbound] = []
    taken: list[EngineInbound] = []
    for event in [*events, "take"]:
        if event == "early":
            early = inbox.take_early()
            assert not any(message in LATE for message in early)
            taken += early
        elif event == "take":
            taken += inbox.take(block=False, timeout_s=0.0)
        else:
            receiver.messages.append(event)
            arrived.append(event)
    assert taken == arrived
