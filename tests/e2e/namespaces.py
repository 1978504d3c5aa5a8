"""Network namespaces as machines: a switch and nodes with addresses of their own, on a network without any other host.

Nothing of this machine's own network is touched. Needs root and a kernel that makes namespaces; ``why_not`` says why it
cannot be done here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET"""
_LIBC = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Empty if namespaces can be made."""
    try:
        done = subprocess.run(
            ["unshare", "--net", "--mount", "ip", "link", "add", "type", "veth"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        return f"network namespaces need the programs unshare and ip: {error}"
    return f"this kernel or sandbox forbids network namespaces: {done.stderr.strip()}" if done.returncode else ""


class Network:
    """``count`` nodes, counted from 0, behind one switch."""

    def __init__(self, count: int) -> None:
        self._name = f"mm{os.getpid()}"
        self._count = count

    def address(self, node: int) -> str:
        return f"10.77.0.{10 + node}"

    def on(self, node: int) -> tuple[str, ...]:
        """A command that executes the one after it on the node."""
        return ("ip", "netns", "exec", f"{self._name}n{node}")

    def plug(self, node: int, *, connected: bool) -> None:
        """Pull the node's cable, or put it in again. Nobody gets any word of it."""
        _ip("-n", self._name, "link", "set", f"v{node}", "up" if connected else "down")

    @contextlib.contextmanager
    def from_switch(self) -> Iterator[None]:
        """Sockets that this thread opens within the block, and processes that it starts, are at the switch."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(os.open(f"/run/netns/{self._name}", os.O_RDONLY))
            yield
        finally:
            _enter(before)

    def up(self) -> None:
        switch = self._name
        _ip("netns", "add", switch)
        for words in ("link set lo up", "link add br0 type bridge", "link set br0 up", "addr add 10.77.0.1/24 dev br0"):
            _ip("-n", switch, *words.split())
        for node in range(self._count):
            name = f"{switch}n{node}"
            _ip("netns", "add", name)
            _ip("link", "add", f"v{node}", "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"v{node}", "master", "br0", "up")
            for words in (f"addr add {self.address(node)}/24 dev eth0", "link set lo up", "link set eth0 up"):
                _ip("-n", name, *words.split())

    def down(self) -> None:
        for name in (*(f"{self._name}n{node}" for node in range(self._count)), self._name):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextlib.contextmanager
def network(count: int) -> Iterator[Network]:
    made = Network(count)
    try:
        made.up()
        yield made
    finally:
        made.down()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _enter(descriptor: int) -> None:
    try:
        if _LIBC.setns(descriptor, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)
