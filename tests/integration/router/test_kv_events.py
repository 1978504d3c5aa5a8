"""KV events over real sockets: published while a router works, repeated on request, bounded for who reads none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from msgspec import structs

from mmserve.ipc.events.numbers import END_OF_REPLAY, number_bytes, number_of
from mmserve.ipc.events.publisher import Publisher
from mmserve.runtime.errors import StartupError
from tests.fakes.http.kv_subscriber import Batch, ClearedEvent, Holdings, StoredEvent, decode, replay
from tests.fakes.http.ports import free_port
from tests.fakes.pictures.cache import until
from tests.integration.router.conftest import RouterPeers
from tests.unit.router.builders import request, span

PAYLOAD = bytes(2000)


@contextmanager
def subscribed(endpoint: str, topic: bytes = b"", hwm: int = 1000) -> Iterator[Any]:
    with closing(zmq.Context.instance().socket(zmq.SUB)) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 20_000)
        socket.set_hwm(hwm)
        socket.connect(endpoint)
        socket.setsockopt(zmq.SUBSCRIBE, topic)
        yield socket


def received(socket: Any) -> tuple[int, bytes]:
    _topic, sequence, payload = socket.recv_multipart()
    number = number_of(sequence)
    assert number is not None
    return number, payload


def publish_until_heard(publisher: Publisher, socket: Any) -> int:
    """A subscription takes effect some time after it was made. Returns the number of the last batch heard."""
    number = 0
    while True:
        publisher.publish(number, PAYLOAD)
        if socket.poll(20):
            last, _ = received(socket)
            while last < number:
                last, _ = received(socket)
            return last
        number += 1


@pytest.fixture
def endpoints(tmp_path: Path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


def test_a_router_process_tells_what_it_caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    events, asks = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    options = {"kv_events_endpoint": events, "kv_events_replay_endpoint": asks, "kv_events_topic": "kv@pod@llava"}
    picture = structs.replace(span(20, 40, 1), key=b"\xaa\xbb")
    prompt = [*range(1, 21), *range(1 << 32, (1 << 32) + 40), *range(1, 13)]
    with ExitStack() as stack:
        peers = RouterPeers(tmp_path_factory.mktemp("r"), stack, num_blocks=24, overlap=False, **options)
        socket = stack.enter_context(subscribed(events, b"kv@"))
        peers.router.send(request("a", prompt, max_tokens=30, spans=(picture,)))
        peers.replies_until_finish(0, 1)
        found = replay(asks, 0)
        batches = [decode(payload) for _, _, payload in found]
        holdings = Holdings()
        for batch in batches:
            holdings.apply(batch)
        assert {topic for topic, _, _ in found} == {b"kv@pod@llava"}
        assert [number for _, number, _ in found] == [*range(len(found))]
        assert isinstance(batches[0].events[0], ClearedEvent)
        prompt_event = batches[1].events[0]
        assert isinstance(prompt_event, StoredEvent)
        assert len(prompt_event.block_hashes) == 4
        assert prompt_event.extra_keys == [None, [["aabb", 4]], [["aabb", -12]], [["aabb", -28]]]
        assert len(holdings.blocks) == (len(prompt) + 30 - 1) // 16

        # What is published now is the same as what can be asked for; an equal prompt brings its answer's blocks alone.
        peers.router.send(request("b", prompt, max_tokens=40, seed=3, spans=(picture,)))
        number, payload = received(socket)
        peers.replies_until_finish(0, 1)
        assert (b"kv@pod@llava", number, payload) in replay(asks, number)
        later: list[Batch] = [decode(body) for _, _, body in replay(asks, len(found))]
        for batch in later:
            holdings.apply(batch)
        stored = [event for batch in later for event in batch.events if isinstance(event, StoredEvent)]
        assert stored
        assert all(event.extra_keys is None and event.parent_block_hash is not None for event in stored)
        assert peers.stop() == ("stopped", 0)


def test_events_are_arrays_and_few_are_kept_if_asked_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    events, asks = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    options = {"kv_events_endpoint": events, "kv_events_replay_endpoint": asks}
    with ExitStack() as stack:
        run_dir = tmp_path_factory.mktemp("r")
        small: dict[str, Any] = {"kv_events_format": "array", "kv_events_buffer_mb": 0.001}
        peers = RouterPeers(run_dir, stack, num_blocks=24, overlap=False, **options, **small)
        peers.router.send(request("a", [*range(1, 40)], max_tokens=100))
        peers.replies_until_finish(0, 1)
        found = replay(asks, 0)
        assert found[0][1] > 0, "the first batch was dropped"
        kept = [event for _, _, payload in found for event in msgspec.msgpack.decode(payload)[1]]
        assert kept
        assert {event[0] for event in kept} == {"BlockStored"}
        assert all(len(event[3]) == event[4] * len(event[1]) for event in kept)


def test_a_gap_is_filled_by_a_replay(endpoints: tuple[str, str]) -> None:
    with Publisher(*endpoints, "", 1 << 20) as publisher, subscribed(endpoints[0]) as socket:
        last = publish_until_heard(publisher, socket)
        for number in range(last + 1, last + 6):
            publisher.publish(number, str(number).encode())
        heard = [received(socket) for _ in range(5)]
        dropped = heard[:4]  # say they were lost
        found = replay(endpoints[1], last + 1)
        assert [(number, payload) for _, number, payload in found[:4]] == dropped
        assert replay(endpoints[1], last + 6) == []


def test_a_request_without_an_empty_frame_is_answered_alike(endpoints: tuple[str, str]) -> None:
    with Publisher(*endpoints, "t", 1 << 20) as publisher, closing(zmq.Context.instance().socket(zmq.DEALER)) as dealer:
        publisher.publish(0, b"x")
        until(lambda: len(replay(endpoints[1], 0)) == 1)
        dealer.setsockopt(zmq.RCVTIMEO, 20_000)
        dealer.connect(endpoints[1])
        dealer.send(b"no number")
        dealer.send(number_bytes(0))
        assert dealer.recv_multipart() == [b"t", number_bytes(0), b"x"]
        assert dealer.recv_multipart() == [b"", END_OF_REPLAY, b""]


def test_a_subscriber_that_never_reads_holds_a_bounded_number_of_batches(endpoints: tuple[str, str]) -> None:
    """Others get all; it gets those that fitted its queue, and then the gap shows."""
    count = 6000
    with (
        Publisher(*endpoints, "", 1 << 20) as publisher,
        subscribed(endpoints[0], hwm=10) as lazy,
        subscribed(endpoints[0], hwm=count) as eager,
    ):
        start = max(publish_until_heard(publisher, socket) for socket in (lazy, eager)) + 10_000
        while eager.poll(100):
            received(eager)
        for number in range(start, start + count):
            publisher.publish(number, PAYLOAD)
            assert received(eager) == (number, PAYLOAD)
        fitted = 0
        while lazy.poll(200):
            number, _ = received(lazy)
            fitted += number >= start
        assert fitted < 3000
        newest = replay(endpoints[1], start)
        assert newest[-1][1] == start + count - 1
        assert sum(len(payload) for _, _, payload in newest) <= 1 << 20


def test_peers_that_ask_and_do_not_read_are_bounded_too(endpoints: tuple[str, str]) -> None:
    """The rest of its replay is dropped, and the next one is served."""
    with Publisher(*endpoints, "", 1 << 20) as publisher, closing(zmq.Context.instance().socket(zmq.DEALER)) as dealer:
        for number in range(100):
            publisher.publish(number, PAYLOAD)
        until(lambda: len(replay(endpoints[1], 0)) == 100)
        dealer.set_hwm(1)
        dealer.connect(endpoints[1])
        for _ in range(1000):
            dealer.send_multipart((b"", number_bytes(0)))
        assert len(replay(endpoints[1], 0)) == 100


def test_publishing_does_not_wait_for_the_thread(endpoints: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that does not fit is lost, and those after it go on."""
    blocked = threading.Event()
    send = Publisher._send

    def slow(self: Publisher, sequence: bytes, payload: bytes) -> None:
        blocked.wait()
        send(self, sequence, payload)

    monkeypatch.setattr(Publisher, "_send", slow)
    with Publisher(*endpoints, "", 1 << 24) as publisher:
        for number in range(5000):
            publisher.publish(number, b"x")
        blocked.set()
        until(lambda: len(replay(endpoints[1], 0)) >= 1000)
        numbers = [number for _, number, _ in replay(endpoints[1], 0)]
        assert numbers == sorted(set(numbers))
        assert len(numbers) < 5000


def test_a_taken_address_ends_the_start(endpoints: tuple[str, str]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Publisher(address, None, "", 1000),
        pytest.raises(StartupError, match=rf"cannot be published at {address}: Address already in use"),
    ):
        Publisher(address, None, "", 1000)
