"""The process of the pipeline: requests come and tokens go through a connection.

A step holds Python's lock until it ends, so HTTP in the same process would wait for it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.peers.on_openvino.chat import Asked
from benchmarks.peers.on_openvino.engine import Engine, Request
from benchmarks.peers.on_openvino.options import Options

Numbered = tuple[int, Asked]


def main(options: Options, connection: Connection) -> None:
    """Until the connection receives None. Sends None when the pipeline is ready."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server ends it
    from benchmarks.peers.on_openvino.pipeline import OpenVino  # the server need not import it

    pipeline = OpenVino(options)
    connection.send(None)
    Engine(pipeline, _Inbox(pipeline.ids, connection), connection.send).run()


@dataclass(frozen=True)
class _Inbox:
    ids: Callable[[Asked], list[int]]
    connection: Connection

    def poll(self) -> bool:
        return self.connection.poll()

    def recv(self) -> Request | None:
        received: Numbered | None = self.connection.recv()
        if received is None:
            return None
        number, asked = received
        return Request(number, self.ids(asked), asked.max_tokens)
