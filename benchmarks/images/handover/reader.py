"""A reader process: ``python -m ... INBOX OUTBOX WAY ARENA_FD``.

It answers each payload with its cost in this process and the time it was received, by the machine's common clock.
"""

from __future__ import annotations

import sys
import time

import zmq

from benchmarks.images.handover.ways import first_and_last_byte
from mmserve.ipc.arena import Arena


def main() -> None:
    inbox_path, outbox_path, way, fd = sys.argv[1:]
    context = zmq.Context()
    inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    inbox.bind(inbox_path)
    outbox.connect(outbox_path)
    arena = Arena.attach(int(fd))
    outbox.send(b"")
    while True:
        started_s = time.process_time()
        found = first_and_last_byte(way, arena, inbox)
        outbox.send_json([*found, time.process_time() - started_s, time.perf_counter()])


if __name__ == "__main__":
    main()
