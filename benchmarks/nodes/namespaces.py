"""Network namespaces as machines: a switch and nodes with addresses of their own, on a network without any other host.

Nothing of this machine's own network is touched. Needs root and a kernel that makes namespaces; ``why_not`` says why it
cannot be done here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Collection, Iterator

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET"""
_LIBC = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Empty if namespaces can be made."""
    try:
        done = subprocess.run(
            ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "type", "veth"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        return f"network namespaces need the programs unshare and ip: {error}"
    return f"this kernel or sandbox forbids network namespaces: {done.stderr.strip()}" if done.returncode else ""


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Sockets and devices that this thread opens within the block, and processes that it starts, are there."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _enter(os.open(f"/run/netns/{namespace}", os.O_RDONLY))
        yield
    finally:
        _enter(before)


class Network:
    """``count`` nodes, counted from 0, behind one switch. ``delayed``: those whose cables can be made slow, which are
    slower than others by themselves where the kernel has no netem."""

    def __init__(self, count: int, delayed: Collection[int] = ()) -> None:
        self._name = f"mm{os.getpid()}"
        self._count = count
        self._delayed = delayed
        self._relays: dict[int, subprocess.Popen[str]] = {}

    def address(self, node: int) -> str:
        return f"10.77.0.{10 + node}"

    def on(self, node: int) -> tuple[str, ...]:
        """A command that executes the one after it on the node."""
        return ("ip", "netns", "exec", self._of(node))

    def plug(self, node: int, *, connected: bool) -> None:
        """Pull the node's cable, or put it in again. Nobody gets any word of it."""
        _ip("-n", self._name, "link", "set", f"v{node}", "up" if connected else "down")

    def disturb(self, node: int, *, milliseconds: float = 0.0, loss: float = 0.0) -> None:
        """Delay of each direction, and the share of its packets that is lost, from now on. For those in ``delayed``."""
        if (relay := self._relays.get(node)) is None:
            for namespace, device in ((self._name, f"v{node}"), (self._of(node), "eth0")):
                words = ("qdisc", "replace", "dev", device, "root", "netem", "delay", f"{milliseconds:g}ms")
                lost = ("loss", f"{100 * loss:g}%")
                subprocess.run(["tc", "-n", namespace, *words, *lost], check=True, capture_output=True)
        else:
            assert relay.stdin is not None
            relay.stdin.write(f"delay {milliseconds:g} loss {loss:g}\n")
            relay.stdin.flush()

    def from_switch(self) -> contextlib.AbstractContextManager[None]:
        """Sockets that this thread opens within the block, and processes that it starts, are at the switch."""
        return entered(self._name)

    def up(self) -> None:
        switch = self._name
        _ip("netns", "add", switch)
        for words in ("link set lo up", "link add br0 type bridge", "link set br0 up", "addr add 10.77.0.1/24 dev br0"):
            _ip("-n", switch, *words.split())
        netem = not self._delayed or _has_netem(switch)
        for node in range(self._count):
            name = self._of(node)
            _ip("netns", "add", name)
            if node in self._delayed and not netem:
                self._relays[node] = _relay(switch, f"v{node}", name, "eth0")
            else:
                _ip("link", "add", f"v{node}", "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"v{node}", "master", "br0", "up")
            for words in (f"addr add {self.address(node)}/24 dev eth0", "link set lo up", "link set eth0 up"):
                _ip("-n", name, *words.split())

    def down(self) -> None:
        for relay in self._relays.values():
            relay.communicate()  # it ends with its stdin
        for name in (*(self._of(node) for node in range(self._count)), self._name):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _of(self, node: int) -> str:
        return f"{self._name}n{node}"


@contextlib.contextmanager
def network(count: int, delayed: Collection[int] = ()) -> Iterator[Network]:
    made = Network(count, delayed)
    try:
        made.up()
        yield made
    finally:
        made.down()


def _has_netem(namespace: str) -> bool:
    command = ["tc", "-n", namespace, "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "0ms"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _relay(*ends: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.nodes.relay", *ends]
    relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert relay.stdout is not None
    if not relay.stdout.readline():
        raise OSError("the kernel makes no TAP devices, and has no netem")
    return relay


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _enter(descriptor: int) -> None:
    try:
        if _LIBC.setns(descriptor, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)
