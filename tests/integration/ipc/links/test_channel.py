"""Message channels on real sockets: order, restarts of the receiver, malformed messages, limits."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from itertools import pairwise
from pathlib import Path

import pytest
import zmq

from mmserve.ipc.links.channel import AsyncReceiver, Receiver, Sender
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import AbortRequest, EngineInbound
from mmserve.runtime.errors import StartupError
from tests.fakes.processes.shortages import no_more_descriptors


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'channel'}"


def _receive(receiver: Receiver[TokenReply], count: int) -> list[TokenReply]:
    messages: list[TokenReply] = []
    for _ in range(100):
        messages += receiver.drain(block=True, timeout_s=0.1)
        if len(messages) >= count:
            break
    return messages


@pytest.mark.parametrize("end", [Sender, Receiver, AsyncReceiver])
def test_without_descriptors_a_link_is_refused_before_libzmq_ends_the_process(end: type, endpoint: str) -> None:
    with no_more_descriptors(), pytest.raises(StartupError, match="ulimit -n"):
        end(endpoint, TokenReply)


def test_messages_arrive_in_order(endpoint: str) -> None:
    receiver: Receiver[TokenReply] = Receiver(endpoint, TokenReply)
    sender: Sender[TokenReply] = Sender(endpoint, TokenReply)
    sent = [TokenReply(id=str(i), token_ids=(i,)) for i in range(500)]
    assert all(sender.send(message) for message in sent)
    assert _receive(receiver, 500) == sent
    sender.close()
    receiver.close()


def test_a_sender_may_start_before_its_receiver(endpoint: str) -> None:
    sender: Sender[TokenReply] = Sender(endpoint, TokenReply)
    sender.send(TokenReply(id="early"))
    receiver: Receiver[TokenReply] = Receiver(endpoint, TokenReply)
    assert [message.id for message in _receive(receiver, 1)] == ["early"]
    sender.close()
    receiver.close()


def test_a_sender_outlives_its_receiver(endpoint: str) -> None:
    """Messages in transit to the old receiver may be lost; the sender reconnects to the new one."""
    sender: Sender[TokenReply] = Sender(endpoint, TokenReply)
    Receiver(endpoint, TokenReply).close()
    receiver: Receiver[TokenReply] = Receiver(endpoint, TokenReply)
    seen: list[TokenReply] = []
    while not seen:
        sender.send(TokenReply(id="again"))
        seen = receiver.drain(block=True, timeout_s=0.1)
    assert seen[0].id == "again"
    sender.close()
    receiver.close()


def test_a_bad_message_is_skipped(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    receiver: Receiver[TokenReply] = Receiver(endpoint, TokenReply)
    raw = zmq.Context.instance().socket(zmq.PUSH)
    raw.connect(endpoint)
    raw.send(b"\xc1 not a message")
    raw.send(b"\x82\xa1t\xa6tokens\xa2id\xa2\xff\xfe")  # an id that is not UTF-8
    sender: Sender[TokenReply] = Sender(endpoint, TokenReply)
    sender.send(TokenReply(id="good"))
    assert [message.id for message in _receive(receiver, 1)] == ["good"]
    for link in (raw, sender, receiver):
        link.close()


def test_a_limited_sender_drops_messages_instead_of_blocking(endpoint: str) -> None:
    sender: Sender[TokenReply] = Sender(endpoint, TokenReply, limit=3)
    results = [sender.send(TokenReply(id="x")) for _ in range(10)]
    assert not results[-1]
    sender.close()


def test_an_async_receiver_yields_messages_in_order(endpoint: str) -> None:
    async def scenario() -> list[str]:
        receiver: AsyncReceiver[TokenReply] = AsyncReceiver(endpoint, TokenReply)
        sender: Sender[TokenReply] = Sender(endpoint, TokenReply)
        for name in "abc":
            sender.send(TokenReply(id=name))
        seen = []
        async for message in receiver:
            seen.append(message.id)
            if len(seen) == 3:
                break
        sender.close()
        receiver.close()
        return seen

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == ["a", "b", "c"]


NESTED = b"\x82\xa1t\xa6tokens\xa5extra" + b"\x91" * 100_000
"""An unknown field that is nested more deeply than a decoder goes."""


def test_a_message_nested_too_deeply_is_skipped(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    receiver: Receiver[TokenReply] = Receiver(endpoint, TokenReply)
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(endpoint)
        socket.send(NESTED)
        socket.send(b"\x82\xa1t\xa6tokens\xa2id\xa1a")
        assert receiver.receive().id == "a"
    receiver.close()
    assert "skipped a message" in caplog.text


def test_a_long_queue_of_messages_does_not_hold_the_event_loop(endpoint: str) -> None:
    async def test() -> list[int]:
        receiver: AsyncReceiver[TokenReply] = AsyncReceiver(endpoint, TokenReply)
        sender: Sender[TokenReply] = Sender(endpoint, TokenReply)
        for number in range(1000):
            sender.send(TokenReply(id=str(number)))
        received, seen = 0, []

        async def watch() -> None:
            while received < 1000:
                seen.append(received)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        async for _ in receiver:
            received += 1
            if received == 1000:
                break
        await watching
        sender.close()
        receiver.close()
        return seen

    seen = asyncio.run(test())
    assert max(after - before for before, after in pairwise([0, *seen, 1000])) <= 64


def test_bytes_of_a_peer_that_does_not_speak_the_protocol_are_no_messages(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """ZeroMQ's first protocol version has no handshake: random bytes are messages in it."""
    receiver: Receiver[EngineInbound] = Receiver(endpoint, EngineInbound)
    noise = random.Random(3).randbytes
    for _ in range(100):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(endpoint.removeprefix("ipc://"))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stranger.sendall(noise(200))
    sender: Sender[EngineInbound] = Sender(endpoint, EngineInbound)
    sender.send(AbortRequest(id="a", reply_to=0))
    assert receiver.receive() == AbortRequest(id="a", reply_to=0)
    assert not caplog.records
    for link in (receiver, sender):
        link.close()
