"""The whole server: ready when it serves, metrics and heartbeats, and a clean end."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from mmserve.cache_server.client import connect
from mmserve.cache_server.run import run
from mmserve.config.resolved.process import Stop
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.health.heartbeat import read_beat
from tests.fakes.http.kv_subscriber import replay
from tests.fakes.http.ports import two_free_ports
from tests.fakes.pictures.cache import alloc_item, until
from tests.fakes.pictures.media import fake_process, model_spec
from tests.fakes.processes.samples import counted


@pytest.fixture
def sigterm_stops() -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stop

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm_stops")
def test_the_server_serves_reports_and_stops(tmp_path: Path, arena: Arena) -> None:
    endpoints = Endpoints(tmp_path)
    errors: list[BaseException] = []
    port = two_free_ports()
    asks = f"tcp://127.0.0.1:{port + 1}"

    def all_counted() -> bool:
        seen = counted(endpoints)
        return seen.get(("mm_leases",)) == 2 and seen.get(("mm_slots", "embed", "writing")) == 2

    def use() -> None:
        client = connect(endpoints, "http-0", batched=True)
        try:
            cat, _ = client.alloc("r", [alloc_item("cat"), alloc_item("dog")], wait_s=0)
            until(all_counted)
            client.set_items_data("r", [cat.item_id])
            client.set_items_embed([cat.item_id], [True])
            until(lambda: len(replay(asks, 0)) == 2)
            cleared, stored = (msgspec.msgpack.decode(payload)[1] for _, _, payload in replay(asks, 0))
            assert cleared == [{"type": "AllEmbeddingsCleared"}]
            assert stored == [{"type": "EmbeddingStored", "key": alloc_item("cat").key.hex(), "tokens": 4}]
            beat = read_beat(endpoints.heartbeat("cache_server-0"))
            assert beat is not None
            assert beat.pid == os.getpid()
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            errors.append(error)
        finally:
            client.close()
            os.kill(os.getpid(), signal.SIGTERM)

    user = threading.Thread(target=use)
    process = fake_process(
        "cache_server", tmp_path, arena, model_spec(tmp_path), embedding_events_endpoint=f"tcp://127.0.0.1:{port}"
    )
    with pytest.raises(Stop):
        run(dataclasses.replace(process, ready=lambda details: user.start()))
    user.join()
    assert not errors
    assert not endpoints.cache_rpc.exists()
    assert not endpoints.cache_calls.exists()
    assert counted(endpoints)["mm_arena_bytes",] == arena.nbytes
