"""Handing a payload to other processes: the arena, one shared-memory segment each, ZeroMQ frames, and pickles.

One producer has the payload as bytes. A transfer ends when every reader has read both ends of the payload, by the
common clock; the readers' answers are not counted. "whole" starts at the bytes, "hand-over" when they are where the
readers will find them. benchmarks/README.md explains the figures.

    python -m benchmarks.images.ipc
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import zmq

from benchmarks.images.handover.ways import WAYS, Producer, producer
from benchmarks.load import report
from mmserve.ipc.arena import Arena, extent_nbytes

MB = 1_000_000
SIZES_MB = (0.1, 1.0, 16.0, 64.0, 256.0)
READERS = (1, 2, 4)
WARM_UPS = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", action="append", type=float, help="payload, 1e6 bytes; repeatable")
    parser.add_argument("--readers", action="append", type=int, help="processes that read; repeatable")
    parser.add_argument("--repeats", type=int, default=9, help="payloads of each case; medians are printed")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


@dataclass(frozen=True)
class Readers:
    """Started reader processes and their sockets."""

    producer: Producer
    outboxes: Sequence[zmq.Socket[bytes]]
    acks: zmq.Socket[bytes]

    def hand_over(self, payload: bytes) -> tuple[float, float, float]:
        """(whole, hand-over, CPU time of all) in seconds for one payload."""
        cpu_s, started_s = time.process_time(), time.perf_counter()
        self.producer.prepare(payload)
        prepared_s = time.perf_counter()
        for outbox in self.outboxes:
            self.producer.send(outbox, payload)
        answers = [self.acks.recv_json() for _ in self.outboxes]
        cpu_s = time.process_time() - cpu_s
        ended_s = max(seen_s for *_, seen_s in answers)
        self.producer.done()
        assert all([first, last] == [payload[0], payload[-1]] for first, last, *_ in answers), "the payload differs"
        return ended_s - started_s, ended_s - prepared_s, cpu_s + sum(spent_s for _, _, spent_s, _ in answers)


@contextlib.contextmanager
def started_readers(way: str, num_readers: int, arena: Arena) -> Iterator[Readers]:
    """Started and connected when yielded."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        acks = context.socket(zmq.PULL)
        acks.bind(f"ipc://{directory}/acks")
        outboxes = []
        for number in range(num_readers):
            inbox = f"ipc://{directory}/{number}"
            command = [sys.executable, "-m", "benchmarks.images.handover.reader", inbox, f"ipc://{directory}/acks", way]
            reader = stack.enter_context(subprocess.Popen([*command, str(arena.fd)], pass_fds=[arena.fd]))
            stack.callback(reader.kill)
            outboxes.append(context.socket(zmq.PUSH))
            outboxes[-1].connect(inbox)
        for _ in outboxes:
            acks.recv()
        yield Readers(producer(way, arena), outboxes, acks)


def measure(way: str, num_readers: int, payload: bytes, repeats: int, arena: Arena) -> report.Row:
    """Medians of one case."""
    with started_readers(way, num_readers, arena) as readers:
        times_s = [readers.hand_over(payload) for _ in range(WARM_UPS + repeats)][WARM_UPS:]
        whole_ms, hand_over_ms, cpu_ms = (statistics.median(column) * 1e3 for column in zip(*times_s, strict=True))
        return {
            "MB": len(payload) / MB,
            "readers": num_readers,
            "way": way,
            "whole ms": whole_ms,
            "hand-over ms": hand_over_ms,
            "CPU ms": cpu_ms,
            "copies": readers.producer.copies(num_readers),
            "MB copied": len(payload) / MB * readers.producer.copies(num_readers),
        }


def main() -> None:
    options = arguments()
    sizes = [int(mb * MB) for mb in options.mb or SIZES_MB]
    arena = Arena.create(extent_nbytes(max(sizes)))
    arena.map_all()
    rows = [
        measure(way, num_readers, b"\x01" + bytes(size - 2) + b"\x02", options.repeats, arena)
        for size in sizes
        for num_readers in options.readers or READERS
        for way in WAYS
    ]
    whole = {(row["MB"], row["readers"], row["way"]): row["whole ms"] for row in rows}
    for row in rows:
        row["pickle / this"] = whole[row["MB"], row["readers"], "pickle"] / whole[row["MB"], row["readers"], row["way"]]
    print(f"{report.machine()}; medians of {options.repeats}\n\n{report.table(rows)}")
    report.write_json(options.json, rows)
    arena.close()


if __name__ == "__main__":
    main()
