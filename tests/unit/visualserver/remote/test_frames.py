"""Frames are believed only if the other end of this connection has sent them, in this order."""

from __future__ import annotations

import pytest

from mmserve.messages.media import Processing
from mmserve.visualserver.remote.frames import (
    LENGTH,
    SIGNATURE_NBYTES,
    BrokenEncoderLink,
    Direction,
    Encode,
    Fail,
    Message,
    Ping,
    Session,
    message_nbytes,
    payload_nbytes,
)

MESSAGE = Encode(job=1, processing=Processing(), key=b"k", nbytes=5, digest=b"d" * 32)


def parts(frame: bytes) -> tuple[bytes, bytes]:
    assert message_nbytes(frame[: LENGTH.size]) == len(frame) - LENGTH.size - SIGNATURE_NBYTES
    return frame[LENGTH.size : -SIGNATURE_NBYTES], frame[-SIGNATURE_NBYTES:]


@pytest.mark.parametrize("message", [MESSAGE, Ping(), Fail(job=3, reason="why")])
def test_messages_arrive(message: Message) -> None:
    assert Direction(b"k").message(*parts(Direction(b"k").frame(message))) == message
    assert payload_nbytes(message) == (5 if message is MESSAGE else 0)


def test_what_was_changed_repeated_left_out_or_sent_by_others_is_refused() -> None:
    sender = Direction(b"k")
    first, second = (parts(sender.frame(MESSAGE)) for _ in range(2))
    receiver = Direction(b"k")
    receiver.message(*first)
    with pytest.raises(BrokenEncoderLink):
        receiver.message(*first)
    with pytest.raises(BrokenEncoderLink):
        Direction(b"k").message(*second)
    with pytest.raises(BrokenEncoderLink):
        Direction(b"other").message(*first)
    changed = first[0].replace(b"\x05", b"\x06"), first[1]
    with pytest.raises(BrokenEncoderLink):
        Direction(b"k").message(*changed)


@pytest.mark.parametrize("announced", [-1, -(1 << 40)])
def test_a_payload_of_fewer_than_no_bytes_ends_the_connection(announced: int) -> None:
    frame = Direction(b"k").frame(Encode(job=1, processing=Processing(), key=b"k", nbytes=announced, digest=b""))
    with pytest.raises(BrokenEncoderLink):
        Direction(b"k").message(*parts(frame))


def test_a_long_message_is_refused_before_it_is_read() -> None:
    with pytest.raises(BrokenEncoderLink):
        message_nbytes(LENGTH.pack(1 << 30))


def test_both_ends_derive_the_same_and_each_direction_has_a_key_of_its_own() -> None:
    session = Session.of(b"secret", b"n1", b"n2")
    assert session == Session.of(b"secret", b"n1", b"n2")
    values = [session.listener_proof, session.encoder_proof, session.to_encoder, session.to_listener]
    others = [Session.of(b"other", b"n1", b"n2"), Session.of(b"secret", b"n2", b"n1")]
    assert len({*values, *(other.listener_proof for other in others)}) == 6
