"""Sends batches to subscribers and repeats them on request, from a thread of its own: a PUB and a ROUTER socket.

``publish`` never waits. A subscriber that does not read loses batches once _UNREAD_BATCHES wait for it; it sees that by
their numbers, and may ask for those that the replay buffer still has. So neither it nor a peer that asks and does not
read costs more than a bounded number of batches.

Frames are vLLM's. Published: topic, number, payload. A request: an empty frame and the first number wanted; without the
empty frame, as AIBrix sends it, it is answered without too. The answer: topic, number and payload of each batch, then a
message whose number is -1.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType

import zmq

from mmserve.ipc.events.numbers import END_OF_REPLAY, number_bytes, number_of
from mmserve.ipc.events.replay_buffer import MAX_BATCHES, ReplayBuffer
from mmserve.runtime.errors import StartupError
from mmserve.runtime.shortage import OF_A_LINK, has_descriptors

_UNREAD_BATCHES = 1000
"""For each subscriber; a batch has the events of one step."""
_QUEUED_BATCHES = 1000
"""On the way to the thread."""
_MAX_REQUEST_NBYTES = 1024
logger = logging.getLogger(__name__)


class Publisher:
    """Binds the endpoints at once. ``replay_endpoint`` None: nothing is repeated. ``what``: the events are of, in
    messages."""

    def __init__(
        self, endpoint: str, replay_endpoint: str | None, topic: str, buffer_nbytes: int, *, what: str = "KV"
    ) -> None:
        """Raises StartupError if an endpoint is taken, or no address of this machine."""
        if not has_descriptors(OF_A_LINK):
            raise StartupError(f"too few file descriptors are left for {what} events: raise `ulimit -n`")
        self._what = what
        self._topic = topic.encode()
        self._buffer = ReplayBuffer(buffer_nbytes)
        self._is_behind = False
        """The last batch was lost on the way to the thread."""
        self._sockets: list[zmq.Socket[bytes]] = []
        try:
            self._subscribers = self._bound(zmq.PUB, endpoint, _UNREAD_BATCHES)
            # Room for one whole replay, which is sent at once.
            self._replays = replay_endpoint and self._bound(zmq.ROUTER, replay_endpoint, MAX_BATCHES + 1)
        except StartupError:
            self._close_sockets()
            raise
        queue = f"inproc://events-{id(self)}"
        self._arrivals = self._socket(zmq.PULL, _QUEUED_BATCHES)
        self._arrivals.bind(queue)
        self._queue = self._socket(zmq.PUSH, _QUEUED_BATCHES)
        self._queue.connect(queue)
        self._thread = threading.Thread(target=self._serve, name="events", daemon=True)
        self._thread.start()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends the thread; batches that no subscriber has fetched are dropped."""
        self._queue.send(b"")
        self._thread.join()
        self._close_sockets()

    def publish(self, number: int, payload: bytes) -> None:
        """``number``: one more than the last batch's. The batch is lost, which subscribers notice, if the thread is
        more than _QUEUED_BATCHES behind."""
        try:
            self._queue.send_multipart((number_bytes(number), payload), zmq.NOBLOCK)
        except zmq.Again:
            if not self._is_behind:
                logger.warning("%s events are lost: the thread that publishes them does not keep up", self._what)
            self._is_behind = True
        else:
            self._is_behind = False

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._arrivals, zmq.POLLIN)
        if self._replays:
            poller.register(self._replays, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._arrivals in ready:
                frames = self._arrivals.recv_multipart()
                if len(frames) == 1:
                    return
                self._send(*frames)
            if self._replays in ready:
                self._answer()

    def _send(self, sequence: bytes, payload: bytes) -> None:
        number = number_of(sequence)
        assert number is not None
        self._subscribers.send_multipart((self._topic, sequence, payload))
        self._buffer.append(number, payload)

    def _answer(self) -> None:
        assert self._replays
        peer, *delimiter, request = self._replays.recv_multipart()
        first = number_of(request)
        if first is None or delimiter not in ([], [b""]):
            logger.warning("a request for %s events was not understood and is ignored", self._what)
            return
        head = (peer, *delimiter)
        try:
            for number, payload in self._buffer.since(first):
                self._replays.send_multipart((*head, self._topic, number_bytes(number), payload), zmq.NOBLOCK)
            self._replays.send_multipart((*head, b"", END_OF_REPLAY, b""), zmq.NOBLOCK)
        except zmq.ZMQError as error:  # it reads nothing, or is gone
            logger.warning("a replay of %s events was broken off: %s", self._what, error)

    def _bound(self, kind: int, endpoint: str, limit: int) -> zmq.Socket[bytes]:
        socket = self._socket(kind, limit)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_REQUEST_NBYTES)
        # With a domain, libzmq refuses peers of the protocol's first versions, for which any bytes are messages.
        socket.setsockopt(zmq.ZAP_DOMAIN, b"mmserve")
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise StartupError(f"{self._what} events cannot be published at {endpoint}: {error}") from None
        return socket

    def _socket(self, kind: int, limit: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        self._sockets.append(socket)
        socket.setsockopt(zmq.LINGER, 0)
        socket.set_hwm(limit)
        return socket

    def _close_sockets(self) -> None:
        for socket in self._sockets:
            socket.close(linger=0)
