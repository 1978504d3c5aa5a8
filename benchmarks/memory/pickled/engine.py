"""The baseline's engine process: takes pickled requests, reads each tensor for a fixed time, produces tokens.

A stub with the parts that matter here: a queue, one encoder, continuous batching, and payloads kept until their request
ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import setproctitle
import zmq

from benchmarks.memory.pickled.messages import Accepted, Submitted, Token

_STEP_S = 0.01
"""One decoding step of everything that runs."""


@dataclass
class Running:
    request: Submitted
    made: int = 0


@dataclass
class Engine:
    """``service_s``: what encoding one picture takes. ``busy_accept``: requests are taken in between two steps only, as
    LMDeploy's engine loop does; otherwise by a thread of its own, at once."""

    inbox: zmq.Socket[bytes]
    outbox: zmq.Socket[bytes]
    service_s: float
    busy_accept: bool
    received: queue.SimpleQueue[Submitted] = field(default_factory=queue.SimpleQueue)
    accepted: queue.SimpleQueue[Accepted] = field(default_factory=queue.SimpleQueue)
    waiting: deque[Submitted] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)

    def run(self) -> None:
        """For ever: requests in, one picture encoded, one token for all that run."""
        if not self.busy_accept:
            threading.Thread(target=self._receive_at_once, daemon=True).start()
        while True:
            self._take(block=not self.waiting and not self.running)
            if self.waiting:
                self._encode(self.waiting.popleft())
            self._step()

    def _receive_at_once(self) -> None:
        while True:
            self.received.put(_loaded(self.inbox.recv()))

    def _take(self, block: bool) -> None:
        """Everything that is here; ``block``: wait for the first."""
        if self.busy_accept:
            while self.inbox.poll(None if block else 0):
                self._accept(_loaded(self.inbox.recv()))
                block = False
        else:
            while block or not self.received.empty():
                self._accept(self.received.get())
                block = False

    def _accept(self, request: Submitted) -> None:
        """Text goes past the pictures that wait, which is kinder than a real queue."""
        self._send(Accepted(request.id))
        if request.pixels is None:
            self.running.append(Running(request))
        else:
            self.waiting.append(request)

    def _encode(self, request: Submitted) -> None:
        """Reads all of the tensor; encoding takes the service time in all, more only if reading does."""
        assert request.pixels is not None, "text does not wait for the encoder"
        until_s = time.monotonic() + self.service_s
        request.pixels.sum()
        time.sleep(max(0.0, until_s - time.monotonic()))
        self.running.append(Running(request))

    def _step(self) -> None:
        if self.running:
            time.sleep(_STEP_S)
        for each in self.running:
            each.made += 1
            self._send(Token(each.request.id, each.made >= each.request.max_tokens))
        self.running = [each for each in self.running if each.made < each.request.max_tokens]

    def _send(self, message: Accepted | Token) -> None:
        self.outbox.send(pickle.dumps(message))


def _loaded(message: bytes) -> Submitted:
    return pickle.loads(message)  # type: ignore[no-any-return]  # noqa: S301  # the baseline's own front wrote it


def main(inbox: str, outbox: str, service_s: float, busy_accept: bool) -> None:
    """Serve until killed, or until the front is gone. ``inbox``, ``outbox``: ZeroMQ endpoints."""
    setproctitle.setproctitle("baseline: engine")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    context = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receiver.bind(inbox)
    sender.connect(outbox)
    Engine(receiver, sender, service_s, busy_accept).run()


def _end_with(parent: int) -> None:
    """A front that was killed leaves no engine full of pictures behind."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
