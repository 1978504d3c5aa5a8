"""A cable with delay and loss, for kernels without netem: two TAP devices in two network namespaces, this process
between them.

    python -m benchmarks.nodes.relay NAMESPACE INTERFACE NAMESPACE INTERFACE

Says ``ready``; then reads ``delay MILLISECONDS`` and ``loss SHARE`` from stdin, and ends with it. Frames stay in order.
Nothing that is measured as throughput may go through it: it is one Python process.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

from benchmarks.nodes.namespaces import entered

_TUNSETIFF, _TAP_WITHOUT_INFO = 0x400454CA, 0x1002
_FRAME_NBYTES = 65_600
_STDIN = 0


def _tap(namespace: str, name: str) -> int:
    with entered(namespace):
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_INFO))
    return tap


class Cable:
    """Between two descriptors, each of which is read and written in whole frames."""

    def __init__(self, one: int, other: int) -> None:
        self._other = {one: other, other: one}
        self._last_s = {one: 0.0, other: 0.0}
        self._queue: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self._random = random.Random(1)
        self.delay_s = self.loss = 0.0

    def set(self, words: list[bytes]) -> None:
        """Names and values, as they are read from stdin."""
        for name, value in zip(words[::2], words[1::2], strict=True):
            if name == b"delay":
                self.delay_s = float(value) / 1e3
            else:
                self.loss = float(value)

    def take(self, end: int) -> None:
        """All frames that have come at this end."""
        try:
            while frame := os.read(end, _FRAME_NBYTES):
                if self._random.random() < self.loss:
                    continue
                self._last_s[end] = max(self._last_s[end], time.monotonic() + self.delay_s)
                self._count += 1
                heapq.heappush(self._queue, (self._last_s[end], self._count, self._other[end], frame))
        except BlockingIOError:
            pass

    def deliver(self) -> float | None:
        """Those whose time has come. Milliseconds until the next one's."""
        while self._queue and (wait_s := self._queue[0][0] - time.monotonic()) <= 0:
            _, _, end, frame = heapq.heappop(self._queue)
            with contextlib.suppress(OSError):  # that end is not up, as with a cable that is pulled
                os.write(end, frame)
        return max(0.0, wait_s * 1e3) if self._queue else None


def main() -> None:
    ends = _tap(*sys.argv[1:3]), _tap(*sys.argv[3:5])
    cable, poll = Cable(*ends), select.poll()
    for descriptor in (*ends, _STDIN):
        poll.register(descriptor, select.POLLIN)
    print("ready", flush=True)
    while True:
        for descriptor, _ in poll.poll(cable.deliver()):
            if descriptor != _STDIN:
                cable.take(descriptor)
            elif words := os.read(_STDIN, 200).split():
                cable.set(words)
            else:
                return


if __name__ == "__main__":
    main()
