"""Which nodes are there, and whether all are: the head's side of joining. Pure: the time is passed in."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from mmserve.config.resolved.facts import difference
from mmserve.messages.nodes import Join, Refused

logger = logging.getLogger(__name__)


@dataclass
class _Node:
    peer: bytes
    """Name of its connection."""
    heard_s: float


class Membership:
    """Nodes 1 to ``num_nodes`` - 1."""

    def __init__(self, num_nodes: int, facts: dict[str, str], timeout_s: float) -> None:
        self._num_nodes, self._facts, self._timeout_s = num_nodes, facts, timeout_s
        self._nodes: dict[int, _Node] = {}

    def join(self, peer: bytes, message: Join, now_s: float) -> Refused | None:
        """Take the node in, or refuse it. Of two machines with one number the first stays until it is forgotten: a node
        that has started again is not the one that all have met, so it never takes that one's place by itself."""
        rank = message.node_rank
        if not 0 < rank < self._num_nodes:
            return Refused(reason=f"--node-rank {rank}: node 0 was told of {self._num_nodes} nodes (--nnodes)")
        if differences := difference(self._facts, message.facts):
            return Refused(reason=f"node {rank} differs from node 0: {differences}; start both with the same")
        node = self._nodes.get(rank)
        if node is None:
            logger.info("node %d is here", rank)
            self._nodes[rank] = _Node(peer, now_s)
        elif node.peer != peer:
            logger.warning("another machine asks for --node-rank %d, whose node is here", rank)
        else:
            node.heard_s = now_s
        return None

    def heard(self, peer: bytes, now_s: float) -> None:
        """A word from a connection, maybe a node's."""
        for node in self._nodes.values():
            if node.peer == peer:
                node.heard_s = now_s

    def forget(self, rank: int) -> None:
        """It has left before all met."""
        logger.warning("node %d has left", rank)
        self._nodes.pop(rank, None)

    @property
    def peers(self) -> dict[int, bytes]:
        """Connection of each node that is here."""
        return {rank: node.peer for rank, node in self._nodes.items()}

    def missing(self) -> list[int]:
        return [rank for rank in range(1, self._num_nodes) if rank not in self._nodes]

    def silent(self, now_s: float) -> Iterable[int]:
        """The nodes that have said nothing for longer than the timeout."""
        return [rank for rank, node in self._nodes.items() if now_s - node.heard_s > self._timeout_s]
