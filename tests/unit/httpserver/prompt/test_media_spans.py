"""A prompt whose images are leased again is the prompt that would be built from the new leases."""

from __future__ import annotations

from array import array

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.httpserver.call import LeasedItem
from mmserve.httpserver.conversation import Conversation, MediaPart, Message, TextPart
from mmserve.httpserver.prompt.media_spans import leased_again
from mmserve.messages.cache import MediaRecord
from mmserve.messages.media import Handle
from mmserve.processors.interface import Expansion, Run
from tests.fakes.http.http_services import StubPrompts


def lease(number: int, generation: int) -> LeasedItem:
    handle = Handle(generation, 64 * number, 128)
    start = FIRST_VIRTUAL_TOKEN + 1000 * number + 100_000 * generation
    return LeasedItem(
        MediaRecord(number, start, "write", handle, handle),
        Expansion("", (Run(3 + number, (1, 1, 3 + number)), Run(2, (1, 1, 2)))),
    )


def test_new_leases_change_ids_and_spans_and_nothing_else() -> None:
    content = (TextPart("look "), MediaPart(1), TextPart(" at "), MediaPart(0), MediaPart(1), TextPart("!"))
    conversation = Conversation((Message("user", content),))
    old, new = [lease(0, 1), lease(1, 1)], [lease(0, 2), lease(1, 2)]
    first, expected = (StubPrompts().build(conversation, (), leased) for leased in (old, new))
    ids, spans = leased_again(first.ids.tobytes(), first.spans, new)
    assert array("q", ids) == expected.ids
    assert spans == expected.spans
