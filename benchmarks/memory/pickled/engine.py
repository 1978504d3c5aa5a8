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
"""Duration of one decoding step of all running requests."""


@dataclass
class Running:
    request: Submitted
    made: int = 0


@dataclass
class Engine:
    """``service_s``: time to encode one picture. ``busy_accept``: requests are received only between two steps, as in
    LMDeploy's engine loop; otherwise a separate thread receives them at once."""

    inbox: zmq.Socket[bytes]
    outbox: zmq.Socket[bytes]
    service_s: float
    busy_accept: bool
    received: queue.SimpleQueue[Submitted] = field(default_factory=queue.SimpleQueue)
    accepted: queue.SimpleQueue[Accepted] = field(default_factory=queue.SimpleQueue)
    waiting: deque[Submitted] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)

    def run(self) -> None:
        """Loop: receive requests, encode one picture, one token for every running request."""
        if not self.busy_accept:
            threading.Thread(target=self._receive_at_once, daemon=True).start()
        while True:
            self._receive(block=not self.waiting and not self.running)
            if self.waiting:
                self._encode(self.waiting.popleft())
            self._step()

    def _receive_at_once(self) -> None:
        while True:
            self.received.put(_loaded(self.inbox.recv()))

    def _receive(self, block: bool) -> None:
        """Accept all requests that have arrived; ``block``: wait for the first one."""
        if self.busy_accept:
            while self.inbox.poll(None if block else 0):
                self._accept(_loaded(self.inbox.recv()))
                block = False
        else:
            while block or not self.received.empty():
                self._accept(self.received.get())
                block = False

    def _accept(self, request: Submitted) -> None:
        """Text starts before waiting pictures. A real queue would delay it, so the baseline is measured favourably."""
        self._send(Accepted(request.id))
        if request.pixels is None:
            self.running.append(Running(request))
        else:
            self.waiting.append(request)

    def _encode(self, request: Submitted) -> None:
        """Reads the whole tensor. Takes the service time, or longer if reading does."""
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
    """Serve until killed, or until the front process has ended. ``inbox``, ``outbox``: ZeroMQ endpoints."""
    setproctitle.setproctitle("baseline: engine")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    context = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receiver.bind(inbox)
    sender.connect(outbox)
    Engine(receiver, sender, service_s, busy_accept).run()


def _end_with(parent: int) -> None:
    """End this process when its parent ends, also if the parent is killed."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
