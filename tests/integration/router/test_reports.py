"""Reports on real sockets: a front with the secret hears a replica, one without does not."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from contextlib import ExitStack

import pytest
import zmq
import zmq.asyncio

from mmserve.cache_server.stored_keys import StoredKeys, telling_router
from mmserve.cluster.front.reports import ReportListener
from mmserve.cluster.scale.announced import Announced
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.cluster.scale.reports import Holdings, Load, Report, encoded
from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.ipc.links.curve import use_key
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.router.reports.arena_link import ArenaLink
from mmserve.router.reports.publisher import ReportPublisher
from tests.fakes.http.http_worker import run

KEY, OTHER = ClusterKey.of(bytes(32)), ClusterKey.of(bytes([1] * 32))
ANY_PORT = "tcp://127.0.0.1:*"
_HELD = Report(Load(in_flight=3), (Holdings("pictures", 1, 0, (2**64 - 1,), snapshot=True),))


async def _until_heard(publisher: ReportPublisher, cluster: Cluster) -> None:
    async with asyncio.timeout(20):
        while not len(cluster.tables["pictures"]):
            publisher.publish(encoded(_HELD))
            await asyncio.sleep(0.02)


def test_a_front_with_the_secret_learns_what_is_held_and_a_stranger_nothing() -> None:
    async def test() -> None:
        with ReportPublisher(ANY_PORT, KEY) as publisher:
            known, stranger = Cluster(), Cluster()
            listeners = ReportListener(known, KEY), ReportListener(stranger, OTHER)
            for cluster, listener in zip((known, stranger), listeners, strict=True):
                cluster.set_replicas(["a"])
                listener.set({"a": publisher.endpoint})
            await _until_heard(publisher, known)
            assert known.tables["pictures"].holders(2**64 - 1) == ["a"]
            publisher.publish(b"no report")
            publisher.publish(encoded(Report(Load(), (Holdings("pictures", 1, 1, (), (2**64 - 1,)),))))
            async with asyncio.timeout(20):
                while len(known.tables["pictures"]):  # noqa: ASYNC110 - plain state of objects under test
                    await asyncio.sleep(0.01)
            assert stranger.reported_at_s("a") == float("-inf")
            for listener in listeners:
                await listener.aclose()

    run(test)


def test_a_front_that_comes_late_and_one_that_has_missed_a_report_are_told_everything() -> None:
    """They ask over the connection on which they listen. Until then nothing is repeated."""

    async def until(publisher: ReportPublisher, cluster: Cluster, wanted: set[int]) -> int:
        """Publish as a server does. Returns how often it was asked."""
        asked = 0
        async with asyncio.timeout(20):
            while cluster.tables["pictures"].names("a") != wanted:
                was_asked = publisher.is_asked()
                asked += was_asked
                publisher.publish(encoded(Report(Load(), (announced.report(snapshot=was_asked),))))
                await asyncio.sleep(0.02)
        return asked

    announced = Announced("pictures", 1)

    async def test() -> None:
        with ReportPublisher(ANY_PORT, KEY) as publisher:
            announced.add(7)
            announced.report(snapshot=False)  # nobody hears this one
            first, second = Cluster(), Cluster()
            listeners = [ReportListener(each, KEY) for each in (first, second)]
            for cluster, listener in zip((first, second), listeners, strict=True):
                cluster.set_replicas(["a"])
                listener.set({"a": publisher.endpoint})
                assert await until(publisher, cluster, {7}) >= 1
            assert not publisher.is_asked()
            announced.add(8)
            announced.report(snapshot=False)  # lost
            assert await until(publisher, first, {7, 8}) >= 1
            assert await until(publisher, second, {7, 8}) >= 0
            for listener in listeners:
                await listener.aclose()

    run(test)


def test_the_router_learns_what_is_in_the_arena_also_when_it_or_the_cache_server_has_started_again() -> None:
    def heard(keys: StoredKeys, link: ArenaLink, changes: list[tuple[bytes, int]], wanted: set[int]) -> None:
        ends_s = time.monotonic() + 20
        while table.names("") != wanted:
            assert time.monotonic() < ends_s
            keys.publish(changes)
            changes = []
            time.sleep(0.01)
            link.take(lambda report: table.apply("", report))

    table = HoldingsTable()
    with tempfile.TemporaryDirectory(dir="/tmp") as run_dir:
        endpoints = Endpoints(run_dir)
        with ExitStack() as routers:
            link = routers.enter_context(ArenaLink(endpoints))  # it comes first
            with telling_router(endpoints) as keys:
                heard(keys, link, [(b"12345678", 4), (b"abcdefgh", 4)], {_key(b"12345678"), _key(b"abcdefgh")})
                heard(keys, link, [(b"abcdefgh", 0)], {_key(b"12345678")})
                routers.close()
                link = routers.enter_context(ArenaLink(endpoints))
                table = HoldingsTable()
                heard(keys, link, [], {_key(b"12345678")})
            with telling_router(endpoints) as keys:
                heard(keys, link, [], set())


def _key(key: bytes) -> int:
    return int.from_bytes(key, "big")


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no address of IPv6")
def test_a_front_hears_a_replica_that_reports_at_an_address_of_ipv6() -> None:
    async def test() -> None:
        with ReportPublisher("tcp://[::1]:*", KEY) as publisher:
            cluster = Cluster()
            cluster.set_replicas(["a"])
            listener = ReportListener(cluster, KEY)
            listener.set({"a": publisher.endpoint})
            await _until_heard(publisher, cluster)
            await listener.aclose()

    run(test)


def test_who_knows_the_replicas_key_but_has_another_of_its_own_is_refused() -> None:
    """libzmq alone would let any client in."""

    async def test() -> None:
        context = zmq.asyncio.Context()
        with ReportPublisher(ANY_PORT, KEY) as publisher:
            reader = context.socket(zmq.SUB)
            use_key(reader, KEY)
            reader.curve_publickey, reader.curve_secretkey = zmq.curve_keypair()
            reader.subscribe(b"")
            events = reader.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED)
            reader.connect(publisher.endpoint)
            async with asyncio.timeout(20):
                frames = await events.recv_multipart()
            assert int.from_bytes(frames[0][:2], "little") == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            reader.disable_monitor()
            events.close()
            reader.close(linger=0)
            context.term()

    run(test)
