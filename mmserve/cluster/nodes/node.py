"""Another node's end of its link to node 0: joins, then hands plans to the ranks of this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

import zmq

from mmserve.cluster.nodes.wire import CONTROL, PLAN, NodeLost, alive_interval_s
from mmserve.ipc.links.channel import wait_for_any
from mmserve.ipc.links.codec import Codec
from mmserve.ipc.links.curve import SecureSocket
from mmserve.ipc.links.lockstep import LockstepSender
from mmserve.messages.nodes import Alive, Join, Meet, Refused, ToHead, ToNode
from mmserve.messages.step import RankInbound
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.runtime.errors import StartupError

_ASK_S = 0.5
_PATIENCE_S = 5.0
logger = logging.getLogger(__name__)


class NodeLink:
    """The link of one start of the engine. For one thread."""

    def __init__(self, secure: SecureSocket, heartbeat: HeartbeatSender, timeout_s: float) -> None:
        self._secure, self._heartbeat, self._timeout_s = secure, heartbeat, timeout_s
        self._interval_s = alive_interval_s(timeout_s)
        self._to_node: Codec[ToNode] = Codec(ToNode)
        self._to_head: Codec[ToHead] = Codec(ToHead)

    def join(self, join: Join, head: str) -> Meet:
        """Wait for node 0, called ``head`` in the log, and for all other nodes. Raises StartupError if refused."""
        began_s, warned = time.monotonic(), False
        data = self._to_head.encode(join)
        while True:
            self._say(data)
            wait_for_any((self._secure.socket,), _ASK_S)
            self._secure.any_ended()  # a connection before this one
            for kind, payload in self._received():
                message = self._to_node.decode(payload) if kind == CONTROL else None
                if isinstance(message, Meet):
                    return message
                if isinstance(message, Refused):
                    raise StartupError(message.reason)
            if not warned and time.monotonic() - began_s > _PATIENCE_S:
                warned = True
                logger.warning("still waiting for node 0 at %s, and for all others to join it", head)
            self._heartbeat.beat(busy=False)

    def serve(self, ranks: Sequence[LockstepSender[RankInbound]]) -> None:
        """Ends only by an exception: NodeLost."""
        heard_s, said_s = time.monotonic(), 0.0
        alive = self._to_head.encode(Alive())
        while True:
            wait_for_any((self._secure.socket, self._secure.ended), self._interval_s)
            for kind, payload in self._received():
                heard_s = time.monotonic()
                if kind == PLAN:
                    for rank in ranks:
                        rank.send_encoded(payload)
            if self._secure.any_ended():
                raise NodeLost("node 0 has ended the connection")
            now_s = time.monotonic()
            if now_s - heard_s > self._timeout_s:
                raise NodeLost("node 0 has said nothing for --node-timeout")
            if now_s - said_s >= self._interval_s:
                said_s = now_s
                self._say(alive)
            self._heartbeat.beat(busy=False)

    def _say(self, data: bytes) -> None:
        """Without a connection nobody is told."""
        try:
            self._secure.socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            logger.debug("node 0 cannot be told now")

    def _received(self) -> Iterator[tuple[bytes, bytes]]:
        while True:
            try:
                kind, payload = self._secure.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield kind, payload
