"""A served cache per test, and clients of both RPC generations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from tests.fakes.pictures.cache import arena_for, serving_cache

Connect = Callable[..., MediaCacheClient]


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return Endpoints(tmp_path)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = arena_for(4)
    yield arena
    arena.close()


@pytest.fixture
def table(endpoints: Endpoints, arena: Arena) -> Iterator[SharedMediaTable]:
    with serving_cache(endpoints, arena) as table:
        yield table


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def batched(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def client_of(endpoints: Endpoints, batched: bool) -> Iterator[Connect]:
    clients: list[MediaCacheClient] = []

    def make(owner: str = "http-0") -> MediaCacheClient:
        clients.append(connect(endpoints, owner, batched=batched, reconnect_timeout_s=0.1))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
