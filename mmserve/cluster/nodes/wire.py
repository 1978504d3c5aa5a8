"""How messages are framed between nodes, and how often each side says that it is alive."""

from __future__ import annotations

from mmserve.runtime.errors import StartupError

PLAN = b"P"
"""Kind of a frame with a plan, which a node hands to its ranks as it is."""
CONTROL = b"C"
"""Kind of a frame with a message of ``messages/nodes.py``."""
_WORDS_PER_TIMEOUT = 5
_LONGEST_S = 1.0


class NodeLost(StartupError):
    """The link to another node has ended, or nothing has come over it for --node-timeout. Ends this process, with one
    line in the log, and so restarts the engine."""


def alive_interval_s(timeout_s: float) -> float:
    return min(_LONGEST_S, timeout_s / _WORDS_PER_TIMEOUT)
