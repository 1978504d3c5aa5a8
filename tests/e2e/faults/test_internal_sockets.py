"""The sockets between the processes of a running server: closed to other users, and deaf to anything but messages."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import msgspec
import psutil
import pytest
import zmq

from mmserve.cache_server.rpc.framing import frame
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.cache import AllocItem, AllocRequest, GetEmbedRequest, Register, SetEmbedRequest
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.request import EncodeRequest, GenerateRequest
from mmserve.messages.sampling import SamplingParams
from tests.e2e.stack import Stack, ask, run_dirs_of
from tests.fakes.pictures.cache import until

NOBODY = 65534
PICKLE = pickle.dumps(print)
NOISE = random.Random(5).randbytes
ZMTP = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
HUGE = b"\x06" + struct.pack(">Q", 1 << 60)
"""A message of 2^60 bytes is announced."""
RAW = {
    "noise": NOISE(2_000),
    "pickle": PICKLE,
    "http": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n",
    "zmtp then noise": ZMTP + NOISE(500),
    "zmtp then a huge message": ZMTP + HUGE + NOISE(500),
    "frame of 4 GiB": b"\xff" * 400,
    "rpyc frame of 4 GiB": struct.pack("!LB", 0xFFFFFFFF, 0) + NOISE(500),
    "rpyc bomb": struct.pack("!LB", 100, 1) + NOISE(101),
    "rpyc noise": struct.pack("!LB", 300, 0) + NOISE(300) + b"\n",
    "frame of a pickle": frame(PICKLE),
}
FORGED = Handle(1 << 61, 1 << 50, 1 << 40)
SPAN = MediaSpan(start=0, num_tokens=4, item_id=1 << 60, data=FORGED, embed=FORGED, media_index=0)
REQUEST = GenerateRequest(
    id="forged-0",
    reply_to=0,
    prompt_ids=struct.pack("<8q", *range(1 << 40, (1 << 40) + 4), 1, 2, 3, 4),
    spans=(SPAN,),
    sampling=SamplingParams(max_tokens=2),
    arrival_s=0.0,
)
ENCODE = EncodeRequest(id="forged-1", reply_to=0, spans=(SPAN,), arrival_s=0.0)
MESSAGES = [
    NOISE(300),
    PICKLE,
    b"",
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    msgspec.msgpack.encode(REQUEST),
    msgspec.msgpack.encode(ENCODE),
]
CALLS = [
    AllocRequest(request_id="forged", items=(AllocItem(b"k" * 16, -1, -5, 1 << 62),)),
    AllocRequest(request_id="forged", items=(AllocItem(b"", 1 << 62, 1 << 62, 1 << 62),), wait_s=1e300),
    SetEmbedRequest(item_ids=(-1, 1 << 62), ok=(True,)),
    GetEmbedRequest(item_ids=(-1, 1 << 62)),
]


@pytest.fixture
def endpoints(default_stack: Stack) -> Endpoints:
    (run_dir,) = run_dirs_of(default_stack.processes())
    return Endpoints(run_dir)


@pytest.fixture
def undisturbed(default_stack: Stack) -> Iterator[None]:
    """No process of the server has died when the test is over, and requests are answered."""
    before = {process.pid for process in default_stack.processes("mmserve: ")}
    yield
    with default_stack.client() as client:
        assert ask(client, [{"role": "user", "content": "hello"}], max_tokens=2)
    assert {process.pid for process in default_stack.processes("mmserve: ")} == before
    default_stack.check_all_released()


def _sockets(endpoints: Endpoints) -> list[Path]:
    return sorted(path for path in endpoints.run_dir.iterdir() if path.is_socket())


@contextlib.contextmanager
def _as_nobody() -> Iterator[None]:
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def test_only_the_http_and_health_ports_have_no_file_with_permissions(stack: Stack) -> None:
    """Also with several ranks."""
    processes = [psutil.Process(stack.pid), *stack.processes()]
    listening = {
        connection.laddr
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
    }
    abstract = [
        connection.laddr
        for process in processes
        for connection in process.net_connections("unix")
        if connection.laddr and not connection.laddr.startswith("/")
    ]
    assert abstract == [], "a socket without a file has no permissions"
    assert len(listening) == 2
    assert urlparse(stack.url).port in {address.port for address in listening}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_reaches_nothing_but_the_http_and_health_ports(default_stack: Stack, endpoints: Endpoints) -> None:
    sockets = _sockets(endpoints)
    assert len(sockets) >= 8
    processes = [psutil.Process(default_stack.pid), *default_stack.processes()]
    with _as_nobody():
        for path in sockets:
            with socket.socket(socket.AF_UNIX) as stranger, pytest.raises(PermissionError):
                stranger.connect(str(path))
        with pytest.raises(PermissionError):
            list(endpoints.run_dir.iterdir())
        for process in processes:
            for what in ("mem", "environ"):
                with pytest.raises(PermissionError):
                    Path(f"/proc/{process.pid}/{what}").read_bytes()
            with pytest.raises(PermissionError):
                os.listdir(f"/proc/{process.pid}/fd")


@pytest.mark.usefixtures("undisturbed")
def test_raw_bytes_at_every_socket_do_nothing(endpoints: Endpoints) -> None:
    """Also at those of the router and the ranks to each other."""
    for path in _sockets(endpoints):
        for data in RAW.values():
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(10)
                if path.name.startswith("rank"):
                    with pytest.raises(OSError, match="wrong type"):  # packets are sent there, and no streams
                        stranger.connect(str(path))
                    continue
                stranger.connect(str(path))
                # The receiver may hang up before it has all.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    stranger.sendall(data)


@pytest.mark.usefixtures("undisturbed")
def test_forged_messages_are_skipped_or_answered_with_a_miss(default_stack: Stack, endpoints: Endpoints) -> None:
    """At the receivers of messages from outside the engine. The links between router and ranks are in lockstep: a
    message there that does not decode means that both must restart."""
    context = zmq.Context()
    links = [
        path
        for path in _sockets(endpoints)
        if path not in (endpoints.cache_rpc, endpoints.cache_calls, endpoints.metrics_http)
        and not path.name.startswith("rank")
    ]
    assert {path.name for path in links} >= {"router", "health", "http-0", "visual-0"}
    for path in links:
        with context.socket(zmq.PUSH) as sender:
            sender.linger = 5_000
            sender.connect(f"ipc://{path}")
            for message in MESSAGES:
                sender.send(message)
    context.term()
    until(lambda: default_stack.metric("num_requests_running") == 0)


@pytest.mark.usefixtures("undisturbed")
def test_forged_calls_of_the_cache_server_change_nothing_for_others(endpoints: Endpoints) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(10)
        stranger.connect(str(endpoints.cache_calls))
        stranger.sendall(b"".join(frame(msgspec.msgpack.encode(call)) for call in (Register(owner="x"), *CALLS)))
        assert len(stranger.recv(1 << 16)) > 4
