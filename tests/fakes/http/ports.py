"""Ports for servers that are told theirs by an option."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_FIRST_PORT = 20_000
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _candidates() -> Iterator[int]:
    """Ports outside the kernel's ephemeral range, over and over from a random one.

    From that range the kernel gives ports to connections and to sockets bound to port 0: it could give one to another
    process between the probe and its use. If fewer than 1,000 ports lie below the range, ports of the range are used.
    Workers of one test run have different ports.
    """
    first_ephemeral = int(_EPHEMERAL_PORTS.read_text().split()[0]) if _EPHEMERAL_PORTS.exists() else 49_152
    last = first_ephemeral if first_ephemeral > _FIRST_PORT + 1_000 else 60_000
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = (last - _FIRST_PORT) // workers
    ports = range(_FIRST_PORT + worker * share, _FIRST_PORT + (worker + 1) * share)
    start = random.SystemRandom().randrange(share)
    return itertools.cycle([*ports[start:], *ports[:start]])


_ports = _candidates()


def free_port() -> int:
    """A TCP port of the loopback address that is in use by no process, and that this one has not given lately."""
    return next(port for port in _ports if _is_free(port))


def two_free_ports() -> int:
    """The first of two such ports that follow each other."""
    return next(first for first, second in itertools.pairwise(iter(free_port, None)) if second == first + 1)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
