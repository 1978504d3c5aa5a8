from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.front.request.progress import Progress
from mmserve.messages.relay import Sampled, SampledSoFar, comment

_SAMPLED = [Sampled(number % 2, (number, 300_000), (b"\n\n\x00",)) for number in range(4)]
_EVENTS = [b"data: %d\n\n" % number for number in range(4)]
_STREAM = b"".join(comment(sampled) + event for sampled, event in zip(_SAMPLED, _EVENTS, strict=True))


@given(st.lists(st.integers(0, len(_STREAM)), max_size=6))
def test_however_the_bytes_come_whole_events_are_shown_and_counted(cuts: list[int]) -> None:
    progress, shown, at = Progress(), b"", 0
    for cut in [*sorted(cuts), len(_STREAM)]:
        shown += progress.take(_STREAM[at:cut])
        at = cut
        assert shown == b"".join(_EVENTS[: progress.num_events])
        assert progress.sampled.tail() == SampledSoFar(_SAMPLED[: len(progress.sampled)]).tail()
        assert len(progress.sampled) >= progress.num_events
    assert progress.num_events == len(progress.sampled) == 4


def test_pings_are_shown_and_not_counted() -> None:
    progress = Progress()
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    assert progress.take(ping + b"event: message_start\ndata: {}\n\n") == ping + b"event: message_start\ndata: {}\n\n"
    assert progress.num_events == 1


def test_another_replica_begins_with_a_whole_event() -> None:
    progress = Progress()
    assert progress.take(b"data: 1\n\ndata: bro") == b"data: 1\n\n"
    progress.restart()
    assert progress.take(b"data: 2\n\n") == b"data: 2\n\n"
    assert progress.num_events == 2


def test_of_bytes_with_a_damaged_comment_nothing_counts() -> None:
    progress = Progress()
    with pytest.raises(ValueError, match=r"base64|padding|character"):
        progress.take(_STREAM + b": mmserve !!!!\n\n")
    assert (progress.num_events, len(progress.sampled)) == (0, 0)
