"""Four ways to hand a payload to other processes. Each has a producer's half and a reader's half.

The number of copies is that of the payload in host memory; copies into and out of the kernel count as one each.
"""

from __future__ import annotations

import sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Protocol

import msgspec
import numpy as np
import zmq

from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle


class Producer(Protocol):
    """Call ``prepare`` once for all readers, ``send`` for each reader, ``done`` when all have read the payload."""

    def prepare(self, payload: bytes) -> None: ...
    def send(self, socket: zmq.Socket[bytes], payload: bytes) -> None: ...
    def done(self) -> None: ...
    def copies(self, num_readers: int) -> int: ...


class ArenaProducer:
    """Copies the payload into the arena once and sends a handle to each reader."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._handle = Handle(0, 0, 0)

    def prepare(self, payload: bytes) -> None:
        self._handle = Handle(self._handle.generation + 1, 0, len(payload))
        self._arena.open(self._handle)
        self._arena.write(self._handle, payload)

    def send(self, socket: zmq.Socket[bytes], payload: bytes) -> None:
        socket.send(msgspec.msgpack.encode(self._handle))

    def done(self) -> None:
        self._arena.erase(self._handle)

    def copies(self, num_readers: int) -> int:
        return 1


class SegmentProducer:
    """Creates a shared-memory segment for each payload and sends its name to each reader."""

    def prepare(self, payload: bytes) -> None:
        self._segment = SharedMemory(create=True, size=len(payload))
        self._segment.buf[: len(payload)] = payload

    def send(self, socket: zmq.Socket[bytes], payload: bytes) -> None:
        socket.send_string(f"{self._segment.name} {len(payload)}")

    def done(self) -> None:
        self._segment.close()
        self._segment.unlink()

    def copies(self, num_readers: int) -> int:
        return 1


class FrameProducer:
    """ZeroMQ sends from the payload's memory without a copy; the reader views the received frame."""

    def prepare(self, payload: bytes) -> None:
        return None

    def send(self, socket: zmq.Socket[bytes], payload: bytes) -> None:
        socket.send(payload, copy=False)

    def done(self) -> None:
        return None

    def copies(self, num_readers: int) -> int:
        return 2 * num_readers


class PickleProducer:
    """Pickles an array for each reader, with ``send_pyobj``."""

    def prepare(self, payload: bytes) -> None:
        self._array = np.frombuffer(payload, np.uint8)

    def send(self, socket: zmq.Socket[bytes], payload: bytes) -> None:
        socket.send_pyobj(self._array)

    def done(self) -> None:
        return None

    def copies(self, num_readers: int) -> int:
        return 6 * num_readers


WAYS = ("arena", "segment", "frames", "pickle")


def producer(way: str, arena: Arena) -> Producer:
    """The producer's half of one of WAYS."""
    if way == "arena":
        return ArenaProducer(arena)
    return {"segment": SegmentProducer, "frames": FrameProducer, "pickle": PickleProducer}[way]()


def first_and_last_byte(way: str, arena: Arena, socket: zmq.Socket[bytes]) -> tuple[int, int]:
    """The reader's half: receive one payload, read its first and last byte, and release it."""
    if way == "arena":
        view = arena.readable(msgspec.msgpack.decode(socket.recv(), type=Handle))
        return view[0], view[-1]
    if way == "segment":
        name, nbytes = socket.recv_string().split()
        segment = _attached(name)
        found = segment.buf[0], segment.buf[int(nbytes) - 1]
        segment.close()
        return found
    if way == "frames":
        frame = socket.recv(copy=False).buffer
        return frame[0], frame[-1]
    array = socket.recv_pyobj()
    return int(array[0]), int(array[-1])


def _attached(name: str) -> SharedMemory:
    """Of a segment that its producer removes: Python's own tracker, before 3.13, would remove it a second time."""
    segment = SharedMemory(name)
    if sys.version_info < (3, 13):
        resource_tracker.unregister(f"/{name}", "shared_memory")
    return segment
