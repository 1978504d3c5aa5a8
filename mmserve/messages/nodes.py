"""Messages between node 0 and the other nodes of a server whose ranks are on several machines.

They travel over TCP, encrypted, between the two processes ``nodes`` (on node 0) and ``node`` (on each other one).
"""

from __future__ import annotations

import msgspec


class Join(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="join"):
    """A node wants to take part. Repeated until it is answered; the answer is ``Refused`` or, once all are there,
    ``Meet``."""

    node_rank: int
    facts: dict[str, str]
    """What must be equal on all nodes, by its name."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="refused"):
    """The node cannot take part. ``reason``: a line that says what to change."""

    reason: str


class Meet(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="meet"):
    """All nodes are there: the ranks meet at this store, which rank 0 has opened. Also sent to each rank."""

    host: str
    port: int


class Alive(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="alive"):
    """Sent in both directions, several times in each --node-timeout, from ``Meet`` on."""


class StoreOpened(msgspec.Struct, frozen=True, kw_only=True):
    """From rank 0: its store listens at this port."""

    port: int


ToHead = Join | Alive
ToNode = Refused | Meet | Alive
