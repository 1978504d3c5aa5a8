"""The links between two nodes over real sockets: keys, joining, plans with rows, and each way of being lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from mmserve.cluster.nodes.head import HeadLink
from mmserve.cluster.nodes.membership import Membership
from mmserve.cluster.nodes.node import NodeLink
from mmserve.cluster.nodes.rows import PlannedRows
from mmserve.cluster.nodes.wire import NodeLost
from mmserve.ipc.arena import Arena
from mmserve.ipc.links import cluster_key
from mmserve.ipc.links.channel import Receiver, Sender
from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.ipc.links.codec import Codec
from mmserve.ipc.links.curve import connected, listening
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.lockstep import LockstepReceiver, LockstepSender
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.nodes import Join, Meet, StoreOpened, ToHead
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, PlanWithRows, RankInbound, RowPiece, SequenceStep, StepPlan
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.runtime.errors import StartupError
from tests.fakes.http.ports import free_port

FACTS = {"--dtype": "float32"}
ROWS = bytes(range(40))
HANDLE = Handle(7, 0, len(ROWS))
SPAN = MediaSpan(start=0, num_tokens=10, item_id=1, data=None, embed=HANDLE, media_index=0)
NODE_TIMEOUT_S = 1.0


class Running:
    """A function in a thread, and the error that ended it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def runs(self, within_s: float) -> bool:
        """False if it ends within that time."""
        self._thread.join(within_s)
        return self._thread.is_alive()

    def ended(self) -> BaseException | None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.error


@pytest.fixture
def key(tmp_path: Path) -> ClusterKey:
    cluster_key.make_if_missing(tmp_path / "key")
    return cluster_key.read(tmp_path / "key")


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return Endpoints(tmp_path)


@pytest.fixture
def port() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 16)
    made.open(HANDLE)
    made.write(HANDLE, ROWS)
    yield made
    made.close()


@pytest.fixture
def head(endpoints: Endpoints, port: str, key: ClusterKey, arena: Arena) -> Running:
    """Node 0 of two. Its rank 0 has opened a store at port 5."""

    def serve() -> None:
        with ExitStack() as stack:
            store = stack.enter_context(closing(Receiver[StoreOpened](endpoints.node_store, StoreOpened)))
            plans = stack.enter_context(closing(LockstepReceiver[StepPlan](endpoints.node_plans, StepPlan)))
            rank = stack.enter_context(closing(Sender[StoreOpened](endpoints.node_store, StoreOpened)))
            rank.send(StoreOpened(port=5))
            heartbeat = stack.enter_context(closing(HeartbeatSender(endpoints, "nodes-0")))
            secure = stack.enter_context(listening(port, key, "--head"))
            link = HeadLink(secure, Membership(2, FACTS, NODE_TIMEOUT_S), heartbeat, NODE_TIMEOUT_S)
            link.gather(store, "127.0.0.1")
            link.serve(plans, PlannedRows(arena, 4))

    return Running(serve)


def node(port: str, key: ClusterKey, endpoints: Endpoints, work: Callable[[NodeLink], None]) -> None:
    with connected(port, key) as secure, closing(HeartbeatSender(endpoints, "node-0")) as heartbeat:
        work(NodeLink(secure, heartbeat, NODE_TIMEOUT_S))


def test_plans_come_with_their_rows_and_a_closed_link_is_noticed_at_once(
    head: Running, endpoints: Endpoints, port: str, key: ClusterKey
) -> None:
    def work(link: NodeLink) -> None:
        assert link.join(Join(node_rank=1, facts=FACTS), "head") == Meet(host="127.0.0.1", port=5)
        with closing(LockstepSender[RankInbound](endpoints.rank(1), RankInbound)) as rank:
            link.serve([rank])

    new = NewSequence(slot=0, token_ids=b"", num_prompt_tokens=12, spans=(SPAN,), sampling=SamplingParams(max_tokens=5))
    first = StepPlan(step_id=1, new=(new,), steps=(SequenceStep(0, 0, 5, (1,), False),))
    second = StepPlan(step_id=2, steps=(SequenceStep(0, 10, 2, (), True),))
    with ExitStack() as stack:
        inbox = stack.enter_context(closing(LockstepReceiver[RankInbound](endpoints.rank(1), RankInbound)))
        router = stack.enter_context(closing(LockstepSender[StepPlan](endpoints.node_plans, StepPlan)))
        other = Running(lambda: node(port, key, endpoints, work))
        router.send(first)
        router.send(second)
        with_rows = PlanWithRows(plan=first, pieces=(RowPiece(HANDLE, 0, bytearray(ROWS[:20])),))
        assert [inbox.drain(block=True), inbox.drain(block=True)] == [[with_rows], [second]]
        stack.enter_context(closing(LockstepSender[str](endpoints.node_plans, str))).send("no plan")
        assert "does not decode" in str(head.ended())
    assert isinstance(other.ended(), NodeLost)
    assert str(other.error) == "node 0 has ended the connection"


def test_a_node_that_ends_is_lost_at_once(head: Running, endpoints: Endpoints, port: str, key: ClusterKey) -> None:
    node(port, key, endpoints, lambda link: link.join(Join(node_rank=1, facts=FACTS), "head") and None)
    assert str(head.ended()) == "the connection to node 1 has ended"


def test_a_silent_node_is_lost_after_node_timeout(
    head: Running, endpoints: Endpoints, port: str, key: ClusterKey
) -> None:
    """--node-timeout counts, not the connection, which stays. The node has started again, and asks to join."""
    join = Join(node_rank=1, facts=FACTS)

    def work(link: NodeLink) -> None:
        link.join(join, "head")
        again = Codec[ToHead](ToHead).encode(join)
        with connected(port, key) as started:
            for _ in range(500):
                if not head.runs(within_s=0.02):
                    break
                started.socket.send(again)
        assert str(head.ended()) == "node 1 has said nothing for --node-timeout"

    node(port, key, endpoints, work)


def test_a_node_that_differs_is_refused_by_name(
    head: Running, endpoints: Endpoints, port: str, key: ClusterKey
) -> None:
    def work(link: NodeLink) -> None:
        with pytest.raises(StartupError, match="node 1 differs from node 0: --dtype is bfloat16, not float32"):
            link.join(Join(node_rank=1, facts={"--dtype": "bfloat16"}), "head")

    node(port, key, endpoints, work)
    node(port, key, endpoints, lambda link: link.join(Join(node_rank=1, facts=FACTS), "head") and None)
    assert isinstance(head.ended(), NodeLost), "the right one may still join"


@pytest.mark.parametrize("who", ["without a key", "with another file", "who knows the listener's public key"])
def test_a_stranger_is_refused(port: str, key: ClusterKey, tmp_path: Path, who: str) -> None:
    cluster_key.make_if_missing(tmp_path / "other")
    other = cluster_key.read(tmp_path / "other")
    with listening(port, key, "--head") as secure, closing(zmq.Context.instance().socket(zmq.DEALER)) as stranger:
        stranger.linger = 0
        if who != "without a key":
            stranger.curve_serverkey = (other if who == "with another file" else key).listening.public
            stranger.curve_publickey, stranger.curve_secretkey = other.connecting.public, other.connecting.secret
        monitor = stranger.get_monitor_socket(zmq.EVENT_ALL & ~zmq.EVENT_CONNECT_DELAYED & ~zmq.EVENT_CONNECTED)
        stranger.connect(port)
        stranger.send(b"let me in")
        event = recv_monitor_message(monitor)["event"]
        stranger.disable_monitor()
        monitor.close(linger=0)
        assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
        with connected(port, key) as friend:
            friend.socket.send(b"hello")
            assert secure.socket.recv_multipart()[1] == b"hello", "and nothing came before it"


def test_who_waited_for_its_head_does_not_say_it_again_for_each_time_that_it_tried(port: str, key: ClusterKey) -> None:
    with connected(port, key) as node:
        for _ in range(9):
            with pytest.raises(zmq.Again):
                node.socket.send(b"let me in", zmq.NOBLOCK)
        with listening(port, key, "--head") as head:
            node.socket.send(b"now")
            assert head.socket.recv_multipart()[1] == b"now"


def test_an_address_of_another_machine_cannot_be_listened_at(key: ClusterKey) -> None:
    with (
        pytest.raises(StartupError, match="--head: this machine cannot listen at"),
        listening("tcp://192.0.2.1:1", key, "--head"),
    ):
        pass
