"""Links of router and ranks on real sockets: order, long messages, senders that connect, end or send invalid bytes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mmserve.ipc.links.channel import wait_for_any
from mmserve.ipc.links.lockstep import BrokenLink, LockstepReceiver, LockstepSender
from mmserve.messages.reply import TokenReply
from mmserve.runtime.errors import StartupError
from tests.fakes.processes.shortages import no_more_descriptors

WITHIN_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "link"


@pytest.fixture
def receiver(path: Path) -> Iterator[LockstepReceiver[TokenReply]]:
    with closing(LockstepReceiver[TokenReply](path, TokenReply)) as made:
        yield made


@pytest.fixture
def sender(path: Path) -> Iterator[LockstepSender[TokenReply]]:
    with closing(LockstepSender[TokenReply](path, TokenReply)) as made:
        yield made


def received(receiver: LockstepReceiver[TokenReply], count: int) -> list[TokenReply]:
    messages: list[TokenReply] = []
    while len(messages) < count and (some := receiver.drain(block=True, timeout_s=WITHIN_S)):
        messages += some
    return messages


@pytest.mark.parametrize("length", [1, 4_000, 40_000, 3_000_000])
def test_messages_of_all_lengths_arrive_in_order(
    receiver: LockstepReceiver[TokenReply], sender: LockstepSender[TokenReply], length: int
) -> None:
    sent = [TokenReply(id=str(number), message="x" * (length + number)) for number in range(4)]
    for message in sent:
        sender.send(message)
    before = len(os.listdir("/proc/self/fd"))
    assert received(receiver, 4) == sent
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "the connection, and no file"


def test_a_sender_waits_for_its_receiver(path: Path, sender: LockstepSender[TokenReply]) -> None:
    sending = threading.Thread(target=sender.send, args=(TokenReply(id="early"),))
    sending.start()
    with closing(LockstepReceiver[TokenReply](path, TokenReply)) as receiver:
        assert [message.id for message in received(receiver, 1)] == ["early"]
    sending.join(WITHIN_S)


def test_a_receiver_takes_the_place_of_one_that_was_killed(path: Path, sender: LockstepSender[TokenReply]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as killed:
        killed.bind(str(path))
    with closing(LockstepReceiver[TokenReply](path, TokenReply)) as receiver:
        sender.send(TokenReply(id="a"))
        assert [message.id for message in received(receiver, 1)] == ["a"]


def test_senders_come_and_go(path: Path, receiver: LockstepReceiver[TokenReply]) -> None:
    for name in ("a", "b", "c"):
        with closing(LockstepSender[TokenReply](path, TokenReply)) as sender:
            sender.send(TokenReply(id=name))
        assert [message.id for message in received(receiver, 1)] == [name]
    assert receiver.drain(block=False) == []


def test_messages_to_a_receiver_that_has_ended_are_dropped(path: Path, sender: LockstepSender[TokenReply]) -> None:
    with closing(LockstepReceiver[TokenReply](path, TokenReply)) as receiver:
        sender.send(TokenReply(id="a"))
        received(receiver, 1)
    sender.send(TokenReply(id="b"))
    sender.send(TokenReply(id="c" * 100_000))


def test_without_a_message_a_receiver_waits_no_longer_than_it_was_told(receiver: LockstepReceiver[TokenReply]) -> None:
    assert receiver.drain(block=False) == receiver.drain(block=True, timeout_s=0.01) == []


@pytest.mark.parametrize("data", [b"\0", b"no message", b"\x91" * 100_000], ids=["short", "packet", "file"])
def test_what_does_not_decode_breaks_the_link(
    receiver: LockstepReceiver[TokenReply], sender: LockstepSender[TokenReply], data: bytes
) -> None:
    sender.send_encoded(data)
    with pytest.raises(BrokenLink, match="does not decode"):
        receiver.drain(block=True, timeout_s=WITHIN_S)


def test_it_may_be_waited_for_with_others(
    tmp_path: Path, receiver: LockstepReceiver[TokenReply], sender: LockstepSender[TokenReply]
) -> None:
    with closing(LockstepReceiver[TokenReply](tmp_path / "other", TokenReply)) as other:
        sender.send(TokenReply(id="a"))
        assert wait_for_any((other, receiver), WITHIN_S) == [receiver]


def test_without_descriptors_a_receiver_is_refused(path: Path) -> None:
    with no_more_descriptors(), pytest.raises(StartupError, match="ulimit -n"):
        LockstepReceiver[TokenReply](path, TokenReply)
