"""The processes that link the nodes of a server: ``nodes`` on node 0, ``node`` on each other one."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from pathlib import Path

from mmserve.cluster.nodes.head import HeadLink
from mmserve.cluster.nodes.membership import Membership
from mmserve.cluster.nodes.node import NodeLink
from mmserve.cluster.nodes.rows import PlannedRows
from mmserve.config.node_options import head_address
from mmserve.config.resolved.facts import facts_of
from mmserve.config.resolved.process import Process, Stop
from mmserve.ipc.links import cluster_key
from mmserve.ipc.links.channel import Receiver, Sender
from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.ipc.links.curve import connected, listening
from mmserve.ipc.links.lockstep import LockstepReceiver, LockstepSender
from mmserve.messages.nodes import Join, Meet, StoreOpened
from mmserve.messages.step import RankInbound, StepPlan
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.runtime.network import resolved


def run_head(process: Process) -> None:
    """Gather the nodes, report readiness, then pass on plans until stopped or until a node is lost."""
    deployment, endpoints, config = process.deployment, process.endpoints, process.deployment.config
    assert process.arena is not None
    with suppress(Stop), ExitStack() as stack:
        heartbeat = stack.enter_context(closing(HeartbeatSender(endpoints, process.name)))
        plans: LockstepReceiver[StepPlan] = stack.enter_context(
            closing(LockstepReceiver(endpoints.node_plans, StepPlan))
        )
        store: Receiver[StoreOpened] = stack.enter_context(closing(Receiver(endpoints.node_store, StoreOpened)))
        head = head_address(config)
        number = head._replace(host=resolved(*head)[1])
        secure = stack.enter_context(listening(number.endpoint, _key(process), f"--head {head.host}:{head.port}"))
        membership = Membership(config.nnodes, facts_of(deployment), config.node_timeout)
        link = HeadLink(secure, membership, heartbeat, config.node_timeout)
        _tell_ranks(stack, process, link.gather(store, number.host))
        process.ready({})
        link.serve(plans, PlannedRows(process.arena, deployment.embed_row_nbytes))


def run_node(process: Process) -> None:
    """Join node 0, report readiness, then hand plans to the ranks until stopped or until node 0 is lost."""
    deployment, endpoints, config = process.deployment, process.endpoints, process.deployment.config
    with suppress(Stop), ExitStack() as stack:
        heartbeat = stack.enter_context(closing(HeartbeatSender(endpoints, process.name)))
        head = head_address(config)
        secure = stack.enter_context(connected(head.endpoint, _key(process)))
        link = NodeLink(secure, heartbeat, config.node_timeout)
        join = Join(node_rank=config.node_rank, facts=facts_of(deployment))
        _tell_ranks(stack, process, link.join(join, f"{head.host}:{head.port}"))
        process.ready({})
        ranks: list[LockstepSender[RankInbound]] = [
            stack.enter_context(closing(LockstepSender(endpoints.rank(rank), RankInbound)))
            for rank in deployment.ranks_here
        ]
        link.serve(ranks)


def _key(process: Process) -> ClusterKey:
    assert process.deployment.config.cluster_key_file is not None
    return cluster_key.read(Path(process.deployment.config.cluster_key_file))


def _tell_ranks(stack: ExitStack, process: Process, meet: Meet) -> None:
    """Where the ranks of this machine meet the others. The links stay: a rank may not listen yet."""
    for rank in process.deployment.ranks_here:
        sender: Sender[Meet] = stack.enter_context(closing(Sender(process.endpoints.meeting(rank), Meet)))
        sender.send(meet)
