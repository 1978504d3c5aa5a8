"""A visual server that is busy shows what it gets done, also while its tower rests more than it computes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.monitoring.health.heartbeat import read_beat
from mmserve.visualserver import run
from mmserve.visualserver.batches.pace import Pace
from mmserve.visualserver.batches.slices import Slices
from mmserve.visualserver.batches.towers import encoder_device


def test_layers_of_a_tower_that_rests_are_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time is not: a decoder in an endless loop uses it."""
    layers = torch.nn.ModuleList([torch.nn.Identity()])
    tower: Any = torch.nn.ModuleDict({"layers": layers})
    slices = Slices(tower, Pace(0.3), lambda: 0.01, lambda: None, sleep=lambda seconds: None)
    device = encoder_device(TorchPlatform(torch.device("cpu"), torch.float32), None, slices)
    process: Any = SimpleNamespace(endpoints=Endpoints(tmp_path), name="visualserver")
    pipeline: Any = SimpleNamespace(busy=True, is_overdue=True, num_finished=0)
    turns = iter([0, 2, 0, 1])
    monkeypatch.setattr(run, "INTERVAL_S", 0.0)

    def progress() -> int:
        if (turn := next(turns, None)) is None:
            raise asyncio.CancelledError
        for _ in range(turn):
            layers[0](torch.zeros(1))
        return device.progress()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run._beat(process, pipeline, progress))
    beat = read_beat(process.endpoints.heartbeat(process.name))
    assert beat is not None
    assert (beat.busy, beat.progress) == (True, 2)
