"""Messages over the two sockets, and the end of connections that send anything else."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.cache_server.rpc.framing import MAX_FRAME_NBYTES, FramedSocket, frame
from mmserve.cache_server.rpc.v1.client import RpycConnection
from mmserve.cache_server.rpc.v1.service import CacheService
from mmserve.cache_server.run import new_table
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.cache import AllocRequest, CallFailed, GetEmbedRequest, Register, ReleaseRequest
from tests.fakes.pictures.cache import alloc_item, serving_cache, until

CAT = alloc_item("cat")
REGISTER = msgspec.msgpack.encode(Register(owner="http-9"))
RELEASE = msgspec.msgpack.encode(ReleaseRequest(request_id="r"))
NOTHING = msgspec.msgpack.encode(None)
ALLOC = msgspec.msgpack.encode(AllocRequest(request_id="r", items=(CAT,)))
FAILED = msgspec.msgpack.Decoder(CallFailed)


@contextlib.contextmanager
def raw_connection(endpoints: Endpoints) -> Iterator[tuple[socket.socket, FramedSocket]]:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(endpoints.cache_calls))
        with contextlib.closing(FramedSocket(raw, 20)) as frames:
            yield raw, frames


def ask(frames: FramedSocket, message: bytes) -> bytes:
    frames.send(message)
    return frames.receive()


@pytest.fixture
def bystander(table: SharedMediaTable, endpoints: Endpoints) -> Iterator[MediaCacheClient]:
    """Holds something on a connection of its own, and still does when the test is over."""
    client = connect(endpoints, "http-0", batched=True)
    (record,) = client.alloc("kept", [CAT], wait_s=0)
    yield client
    client.set_items_data("kept", [record.item_id])
    assert client.get_items_data("kept", [record.item_id], wait_s=0) == ("data",)
    client.close()


@pytest.mark.parametrize("nbytes", [0, 1, 100_000, 1 << 20])
def test_a_frame_is_received_whole_however_it_was_cut(nbytes: int) -> None:
    ours, theirs = socket.socketpair()
    with contextlib.closing(FramedSocket(ours)) as here, contextlib.closing(FramedSocket(theirs)) as there:
        message = bytes(range(256)) * (nbytes // 256) + bytes(nbytes % 256)
        wire = struct.pack("<I", len(message)) + message
        for cut in (1, 3, 5):
            theirs.sendall(wire[:cut])
            feeder = socket_feeder(theirs, wire[cut:])
            assert here.receive() == message
            feeder()
        here.send(b"x")
        assert there.receive() == b"x"
        there.close()
        with pytest.raises(EOFError):
            here.receive()


def test_a_silent_peer_times_out() -> None:
    ours, theirs = socket.socketpair()
    with theirs, contextlib.closing(FramedSocket(ours, 0.01)) as here:
        with pytest.raises(TimeoutError):
            here.receive()
        with pytest.raises(TimeoutError):
            here.send(bytes(MAX_FRAME_NBYTES))


def socket_feeder(to: socket.socket, data: bytes) -> Callable[[], None]:
    """Sends from a thread, as the receiver must read meanwhile; the result waits for it."""
    thread = threading.Thread(target=to.sendall, args=(data,))
    thread.start()
    return thread.join


@pytest.mark.usefixtures("bystander")
def test_bytes_that_are_no_frame_end_their_connection_alone(table: SharedMediaTable, endpoints: Endpoints) -> None:
    for garbage in (struct.pack("<I", MAX_FRAME_NBYTES + 1), b"GET / HTTP/1.1\r\n\r\n"):
        with raw_connection(endpoints) as (raw, frames):
            assert ask(frames, REGISTER) == NOTHING
            ask(frames, ALLOC)
            assert table.snapshot().num_leases == 2
            raw.sendall(garbage)
            with pytest.raises((EOFError, ConnectionError)):
                frames.receive()
        until(lambda: table.snapshot().num_leases == 1)


@pytest.mark.usefixtures("bystander")
def test_a_frame_that_ends_in_the_middle_ends_its_connection_alone(
    table: SharedMediaTable, endpoints: Endpoints
) -> None:
    with raw_connection(endpoints) as (raw, frames):
        assert ask(frames, REGISTER) == NOTHING
        ask(frames, ALLOC)
        raw.sendall(struct.pack("<I", 1000) + ALLOC)
    until(lambda: table.snapshot().num_leases == 1)


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("first", [RELEASE, ALLOC, b"\xc1", b"", msgspec.msgpack.encode(Register(owner=""))])
def test_without_register_nothing_is_answered(endpoints: Endpoints, first: bytes) -> None:
    with raw_connection(endpoints) as (_, frames):
        frames.send(first)
        with pytest.raises((EOFError, ConnectionError)):
            frames.receive()


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize(
    "call",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"t": "close"}),
        msgspec.msgpack.encode({"t": "alloc", "request_id": "r", "items": [["key", "not a number", 1, 1]]}),
        msgspec.msgpack.encode(ReleaseRequest(request_id="")),
        REGISTER,
    ],
)
def test_an_invalid_call_is_answered_and_the_connection_goes_on(endpoints: Endpoints, call: bytes) -> None:
    with raw_connection(endpoints) as (_, frames):
        assert ask(frames, REGISTER) == NOTHING
        assert FAILED.decode(ask(frames, call)).message
        assert ask(frames, RELEASE) == NOTHING


def test_a_call_that_runs_into_a_bug_is_raised_at_the_caller(
    table: SharedMediaTable, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(endpoints, "http-0", batched=True)
    client.alloc("r", [CAT], wait_s=0)
    with monkeypatch.context() as broken:
        broken.setattr(table, "release", lambda lease: 1 / 0)
        with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match="ZeroDivisionError"):
            client.release("r")
    assert "ZeroDivisionError" in caplog.text
    client.release("r")
    assert table.snapshot().num_leases == 0
    client.close()


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return type(value) is tuple and all(_is_plain(part) for part in value)
    return type(value) in (str, int, bool, float, bytes, type(None))


def test_every_method_of_v1_returns_plain_immutable_values(arena: Arena) -> None:
    connection = CacheService(SharedMediaTable(new_table(arena)), lambda fd, on_disconnect: None)
    connection._fd = 0
    calls: dict[str, tuple[Any, ...]] = {
        "register": ("http-0",),
        "alloc": ("a", CAT.key, 4, 100, 100),
        "await_alloc": ("a", 0.0),
        "set_name": (b"n" * 32, (CAT.key, 4, 100, 100, 40, 30, 0)),
        "get_name": (b"n" * 32,),
        "look_up": (CAT.key, 4, 100, 100),
        "set_items_data": ("a", 1, True),
        "get_items_data": ("a", 1, 0.0),
        "set_items_embed": (1, True),
        "get_items_embed": (1,),
        "release": ("a",),
        "acquire_permits": ((("t", 100, 1.5),), 0.0),
        "release_permit": ("t",),
        "beat": (),
        "unregister": (),
        "get_service_name": (),
        "get_service_aliases": (),
    }
    exposed = {name.removeprefix("exposed_") for name in dir(connection) if name.startswith("exposed_")}
    assert set(calls) == exposed, "a new method needs a line here"
    for name, arguments in calls.items():
        assert _is_plain(getattr(connection, f"exposed_{name}")(*arguments)), name


@pytest.mark.usefixtures("table")
def test_nothing_but_exposed_methods_of_v1_can_be_reached(endpoints: Endpoints) -> None:
    connection = RpycConnection(endpoints.cache_rpc, "http-0")
    connection.call("release", "r")
    for name in ("_table", "_session", "on_connect"):
        with pytest.raises(AttributeError):
            connection.call(name)
    connection.close()


def test_calls_sent_together_are_answered_in_order(table: SharedMediaTable, endpoints: Endpoints) -> None:
    with raw_connection(endpoints) as (raw, frames):
        raw.sendall(b"".join(map(frame, (REGISTER, ALLOC, RELEASE, ALLOC))))
        replies = [frames.receive() for _ in range(4)]
    assert [replies[0], replies[2]] == [NOTHING, NOTHING]
    assert replies[1] != replies[3], "item ids are new after a release of what was not written"


def test_a_reply_larger_than_the_sockets_buffer_arrives_whole(table: SharedMediaTable, endpoints: Endpoints) -> None:
    ids = tuple(range(1 << 19))
    with raw_connection(endpoints) as (_, frames):
        assert ask(frames, REGISTER) == NOTHING
        assert msgspec.msgpack.decode(ask(frames, msgspec.msgpack.encode(GetEmbedRequest(item_ids=ids)))) == [
            "gone" for _ in ids
        ]
        assert ask(frames, RELEASE) == NOTHING


@pytest.mark.usefixtures("bystander")
def test_a_waiting_call_leaves_the_queue_with_its_connection(table: SharedMediaTable, endpoints: Endpoints) -> None:
    items = tuple(alloc_item(f"{number}") for number in range(4))
    waiting = msgspec.msgpack.encode(AllocRequest(request_id="r", items=items, wait_s=60.0))
    with raw_connection(endpoints) as (_, kept):
        assert ask(kept, REGISTER) == NOTHING
        with raw_connection(endpoints) as (_, frames):
            assert ask(frames, REGISTER) == NOTHING
            frames.send(waiting)
            until(lambda: table.snapshot().num_waiting == 1)
        until(lambda: table.snapshot().num_waiting == 0)
        assert ask(kept, RELEASE) == NOTHING, "its owner's other connection goes on"


def test_without_threads_a_connection_of_v1_is_closed_and_the_server_goes_on(
    endpoints: Endpoints, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it still ends in good order: a thread that never started cannot be joined."""
    start = threading.Thread.start

    def no_thread(thread: threading.Thread) -> None:
        if thread.name == "v1":
            raise RuntimeError("can't start new thread")
        start(thread)

    with serving_cache(endpoints, arena) as table:
        with monkeypatch.context() as exhausted:
            exhausted.setattr(threading.Thread, "start", no_thread)
            with pytest.raises((EOFError, ConnectionError)):
                RpycConnection(endpoints.cache_rpc, "http-0")
        connection = RpycConnection(endpoints.cache_rpc, "http-0")
        connection.call("alloc", "r", CAT.key, 4, 100, 100)
        assert table.snapshot().num_leases == 1
        connection.close()


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("header", [struct.pack("!LB", 1 << 31, 0), struct.pack("!LB", 100, 1)])
def test_large_and_compressed_frames_end_a_connection_of_v1(endpoints: Endpoints, header: bytes) -> None:
    """Without reading the rest: rpyc itself would take 4 GiB, and what a compressed frame expands to."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(20)
        raw.connect(str(endpoints.cache_rpc))
        raw.sendall(header)
        assert raw.recv(1) == b""
