"""How the battery counts launches that made the host wait, and finds idle time, with stand-ins for the device."""

from __future__ import annotations

import time
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu.checks import Settings
from benchmarks.gpu.models.engine import Engine
from benchmarks.gpu.rates.idle import Marks
from benchmarks.gpu.steps.engine import _beside_replays


class Runner:
    """Waits once in each launch."""

    def launch(self, plan: Any) -> None:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    def collect(self, launched: Any) -> None:
        pass


def test_what_torch_says_of_the_mode_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: warnings.warn(said, stacklevel=1))
    engine: Any = Engine.__new__(Engine)
    engine.runner, engine._on_gpu = Runner(), True
    engine._next, engine._checked = (lambda: None), (lambda result: None)
    assert engine.waits(3) == 3


@pytest.mark.parametrize(("batch", "rung"), [(1, 1), (3, 4), (5, None)])
def test_idle_time_is_found_beside_replays_of_the_graph_that_steps_take(batch: int, rung: int | None) -> None:
    replayed: list[int] = []
    graphs = {each: SimpleNamespace(replay=partial(replayed.append, each)) for each in (1, 4)}
    engine: Any = Engine.__new__(Engine)
    engine._batch = batch
    engine.runner = SimpleNamespace(_graphs=SimpleNamespace(rungs=(1, 4), _graphs=graphs))
    found = _beside_replays(engine.replay(), 3600.0, Settings(device="cpu"))
    assert set(replayed) == {rung} - {None}
    if rung is None:
        assert found == {}
    else:
        assert found["idle of the device, by events"] > 0.99
        assert found["ms of a replay"] > 0
        assert found["us of the host a replay"] > 0


def test_without_graphs_there_is_no_replay() -> None:
    engine: Any = Engine.__new__(Engine)
    engine.runner = SimpleNamespace(_graphs=None)
    assert engine.replay() is None


def test_marks_of_a_cpu_are_those_of_its_host() -> None:
    marks = Marks(torch.device("cpu"))
    started_s = time.perf_counter()
    for _ in range(3):
        marks.mark()
    assert 0 <= marks.period_s() <= time.perf_counter() - started_s
