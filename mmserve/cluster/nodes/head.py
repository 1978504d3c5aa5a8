"""Node 0's end of the links: gathers the other nodes, then sends them every plan with the rows that it needs."""

from __future__ import annotations

import logging
import time

import msgspec
import zmq

from mmserve.cluster.nodes.membership import Membership
from mmserve.cluster.nodes.rows import PlannedRows
from mmserve.cluster.nodes.wire import CONTROL, PLAN, NodeLost, alive_interval_s
from mmserve.ipc.links.channel import Receiver, wait_for_any
from mmserve.ipc.links.codec import Codec
from mmserve.ipc.links.curve import SecureSocket
from mmserve.ipc.links.lockstep import LockstepReceiver
from mmserve.messages.nodes import Alive, Join, Meet, StoreOpened, ToHead, ToNode
from mmserve.messages.step import PlanWithRows, RankInbound, StepPlan
from mmserve.monitoring.health.heartbeat import HeartbeatSender

logger = logging.getLogger(__name__)


class HeadLink:
    """The links of one start of the engine. For one thread."""

    def __init__(
        self, secure: SecureSocket, membership: Membership, heartbeat: HeartbeatSender, timeout_s: float
    ) -> None:
        self._secure, self._membership, self._heartbeat = secure, membership, heartbeat
        self._interval_s = alive_interval_s(timeout_s)
        self._to_node: Codec[ToNode] = Codec(ToNode)
        self._to_head: Codec[ToHead] = Codec(ToHead)
        self._to_ranks: Codec[RankInbound] = Codec(RankInbound)
        self._told_s = 0.0

    def gather(self, store: Receiver[StoreOpened], host: str) -> Meet:
        """Wait until all nodes are here and rank 0 has opened the store at ``host``; tell the nodes, and return what
        they were told."""
        opened: list[StoreOpened] = []
        told: list[int] = []
        while not opened or self._membership.missing():
            wait_for_any((store, self._secure.socket, self._secure.ended), self._interval_s)
            opened += store.drain(block=False)
            if self._secure.any_ended():
                self._forget_gone()
            self._hear()
            for rank in self._membership.silent(time.monotonic()):
                self._membership.forget(rank)
            if (missing := self._membership.missing()) != told and missing:
                logger.info("waiting for node %s", ", ".join(map(str, missing)))
            told = missing
            self._heartbeat.beat(busy=False)
        meet = Meet(host=host, port=opened[0].port)
        self._tell_all(CONTROL, self._to_node.encode(meet))
        return meet

    def serve(self, plans: LockstepReceiver[StepPlan], rows: PlannedRows) -> None:
        """Ends only by an exception: NodeLost, or BrokenLink if a plan does not decode."""
        while True:
            wait_for_any((plans, self._secure.socket, self._secure.ended), self._interval_s)
            for plan in plans.drain(block=False):
                pieces = rows.of(plan)
                message = PlanWithRows(plan=plan, pieces=pieces) if pieces else plan
                self._tell_all(PLAN, self._to_ranks.encode(message))
            self._hear()
            self._stay_alive(at_once=self._secure.any_ended())
            self._heartbeat.beat(busy=False)

    def _stay_alive(self, *, at_once: bool) -> None:
        """Say that this node is alive; a node that is gone cannot be told. Raises NodeLost."""
        now_s = time.monotonic()
        if at_once or now_s - self._told_s >= self._interval_s:
            self._told_s = now_s
            self._tell_all(CONTROL, self._to_node.encode(Alive()))
        for rank in self._membership.silent(now_s):
            raise NodeLost(f"node {rank} has said nothing for --node-timeout")

    def _hear(self) -> None:
        while True:
            try:
                peer, *frames = self._secure.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                (data,) = frames
                message = self._to_head.decode(data)
            except (ValueError, msgspec.DecodeError):  # a holder of the key, but no node of this version
                logger.warning("a message of another machine was not understood and is ignored")
                continue
            if isinstance(message, Join):
                self._answer(peer, message)
            else:
                self._membership.heard(peer, time.monotonic())

    def _answer(self, peer: bytes, message: Join) -> None:
        if (refused := self._membership.join(peer, message, time.monotonic())) is None:
            return
        logger.error("refused: %s", refused.reason)
        self._tell(peer, CONTROL, self._to_node.encode(refused))

    def _forget_gone(self) -> None:
        """Before the meeting: nodes whose connection has ended may come back."""
        for rank, peer in self._membership.peers.items():
            if not self._tell(peer, CONTROL, self._to_node.encode(Alive())):
                self._membership.forget(rank)

    def _tell_all(self, kind: bytes, data: bytes) -> None:
        for rank, peer in self._membership.peers.items():
            if not self._tell(peer, kind, data):
                raise NodeLost(f"the connection to node {rank} has ended")

    def _tell(self, peer: bytes, kind: bytes, data: bytes) -> bool:
        """False if the connection has ended."""
        try:
            self._secure.socket.send_multipart((peer, kind, data), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True
