"""An encoder's connection to one visual server: connects again and again, hands pictures over, sends results.

Two threads: one connects and reads, the other writes.
"""

from __future__ import annotations

import hmac
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from mmserve.config.node_options import Address
from mmserve.runtime.errors import StartupError
from mmserve.runtime.logs.seldom import Seldom
from mmserve.visualserver.remote.frames import (
    GREETING,
    NONCE_NBYTES,
    SIGNATURE_NBYTES,
    BrokenEncoderLink,
    Direction,
    Encode,
    Fail,
    Hello,
    Message,
    Ping,
    Refused,
    Result,
    Session,
    Welcome,
    digest,
)
from mmserve.visualserver.remote.streams import Stream

_RETRY_S = 0.5
_PINGS_PER_TIMEOUT = 5
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A picture to encode. ``answer``: to be called once, from any thread, with the rows that ``Result`` announces."""

    message: Encode
    data: bytearray
    received_s: float
    answer: Callable[[Result | Fail, memoryview], None]


class Dialer:
    """Starts its threads at once. ``take``: gets each picture. ``welcome``: told how many visual servers there are.
    ``refused``: told why this encoder cannot take part; nothing is tried again then."""

    def __init__(
        self,
        address: Address,
        secret: bytes,
        hello: Hello,
        timeout_s: float,
        take: Callable[[Job], None],
        welcome: Callable[[int], None],
        refused: Callable[[StartupError], None],
    ) -> None:
        self._address, self._secret, self._hello, self._timeout_s = address, secret, hello, timeout_s
        self._take, self._welcome, self._refused = take, welcome, refused
        self._closed = threading.Event()
        self._stream: Stream | None = None
        self._seldom = Seldom()
        self._waits = False
        """True from the first failure, which is logged, until it has joined again."""
        threading.Thread(target=self._run, name=f"encoder-{address.port}", daemon=True).start()

    def close(self) -> None:
        """End the connection, and make no other."""
        self._closed.set()
        if (stream := self._stream) is not None:
            stream.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with socket.create_connection(self._address, self._timeout_s) as sock:
                    self._stream = Stream(sock, self._timeout_s)
                    self._talk(self._stream)
            except StartupError as error:
                self._refused(error)
                return
            except (OSError, BrokenEncoderLink) as error:
                if not self._waits and not self._closed.is_set():
                    logger.warning("no connection to %s:%d, trying again: %s", *self._address, error)
                self._waits = True
            except Exception as error:  # the boundary of one connection
                if self._seldom.is_due(repr(error)):
                    logger.exception("the connection to %s:%d ends by an error of this encoder", *self._address)
            self._closed.wait(_RETRY_S)

    def _talk(self, stream: Stream) -> None:
        session = self._greet(stream)
        incoming, outgoing = Direction(session.to_encoder), Direction(session.to_listener)
        stream.send(outgoing.frame(self._hello))
        message = stream.message(incoming)
        if isinstance(message, Refused):
            raise StartupError(f"{self._address.host}:{self._address.port}: {message.reason}")
        if not isinstance(message, Welcome):
            raise BrokenEncoderLink(f"a {type(message).__name__} at the wrong time")
        self._waits = False
        logger.info("joined %s:%d", *self._address)
        self._welcome(message.visual_servers)
        _Connection(stream, incoming, outgoing, self._hello, self._timeout_s).serve(self._take)

    def _greet(self, stream: Stream) -> Session:
        """Raises BrokenEncoderLink if the other end does not have the secret."""
        nonce = secrets.token_bytes(NONCE_NBYTES)
        stream.send(GREETING + nonce)
        session = Session.of(self._secret, nonce, bytes(stream.read(NONCE_NBYTES)))
        if not hmac.compare_digest(bytes(stream.read(SIGNATURE_NBYTES)), session.listener_proof):
            raise BrokenEncoderLink("it does not have the key (--cluster-key-file)")
        stream.send(session.encoder_proof)
        return session


class _Connection:
    """One that both sides have agreed on."""

    def __init__(
        self, stream: Stream, incoming: Direction, outgoing: Direction, hello: Hello, timeout_s: float
    ) -> None:
        self._stream, self._incoming, self._outgoing = stream, incoming, outgoing
        self._hello, self._timeout_s = hello, timeout_s
        self._answers: queue.SimpleQueue[tuple[Message, memoryview] | None] = queue.SimpleQueue()
        """At most as many as there are slots."""
        self._lock = threading.Lock()
        self._unanswered: dict[int, int] = {}
        """Job -> bytes of its picture."""

    def serve(self, take: Callable[[Job], None]) -> None:
        """Until the connection ends: raises BrokenEncoderLink."""
        writer = threading.Thread(target=self._write, name="encoder-write", daemon=True)
        writer.start()
        try:
            while True:
                message = self._stream.message(self._incoming)
                if isinstance(message, Encode):
                    if (job := self._job(message)) is not None:
                        take(job)
                elif not isinstance(message, Ping):
                    raise BrokenEncoderLink(f"a {type(message).__name__} at the wrong time")
        finally:
            self._answers.put(None)
            writer.join()

    def _job(self, message: Encode) -> Job | None:
        """None if its bytes changed on the way. Raises BrokenEncoderLink if it is more than was offered."""
        with self._lock:
            held = sum(self._unanswered.values()) + message.nbytes
            if held > self._hello.credit or len(self._unanswered) >= self._hello.slots:
                raise BrokenEncoderLink(f"{len(self._unanswered) + 1} pictures, {held} bytes: more than was offered")
            self._unanswered[message.job] = message.nbytes
        data = self._stream.read(message.nbytes)
        if digest(data) != message.digest:
            self._answer(Fail(job=message.job, reason="the picture changed while it was sent"), memoryview(b""))
            return None
        return Job(message, data, time.monotonic(), self._answer)

    def _answer(self, message: Result | Fail, rows: memoryview) -> None:
        with self._lock:
            if self._unanswered.pop(message.job, None) is None:
                return
        self._answers.put((message, rows))

    def _write(self) -> None:
        interval_s = self._timeout_s / _PINGS_PER_TIMEOUT
        while True:
            try:
                answer = self._answers.get(timeout=interval_s)
            except queue.Empty:
                answer = (Ping(), memoryview(b""))
            if answer is None:
                return
            message, rows = answer
            try:
                self._stream.send(self._outgoing.frame(message), rows)
            except BrokenEncoderLink:
                self._stream.close()
                return
            except Exception:  # the boundary of one connection
                logger.exception("a result cannot be sent; the connection ends")
                self._stream.close()
                return
