"""Opening a worker's request services."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from mmserve.config.resolved.process import Process
from mmserve.httpserver.services import open_services
from mmserve.ipc.arena import Arena
from mmserve.monitoring.metrics.client import MetricsClient
from tests.fakes.models.chat_models import deployment_of, write_chat_model


@pytest.mark.parametrize("prefault", [True, False])
def test_the_arena_is_mapped_at_start_only_with_prefault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefault: bool
) -> None:
    mapped: list[Arena] = []
    monkeypatch.setattr(Arena, "map_all", lambda arena: mapped.append(arena))
    model = tmp_path / "model"
    model.mkdir()
    deployment = deployment_of(write_chat_model(model), run_dir=str(tmp_path), prefault=prefault)
    arena = Arena.create(1 << 16)
    process = Process(deployment, "httpserver", 0, ready=lambda details: None, arena=arena)

    async def scenario() -> None:
        with closing(MetricsClient(process.endpoints, process.name)) as metrics:
            async with open_services(process, metrics):
                assert mapped == ([arena] if prefault else [])

    asyncio.run(scenario())
    arena.close()
