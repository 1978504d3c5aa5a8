"""Step 5: decode steps and prompts of whole models with random weights, and a vision tower, beside their floors."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.checks import Checks, Figures, Settings
from benchmarks.gpu.models.shapes import SHAPES, SMALL, Shape
from benchmarks.gpu.rates.floors import decode_s, prefill_s, tower_operations

if TYPE_CHECKING:
    from benchmarks.gpu.models.engine import Engine
    from mmserve.runtime.step_times import StepTimes

_FP8, _IN_BLOCKS = ", FP8", ", FP8 in blocks"
"""Behind a model's name: ``models.weights.Weights`` of its layers."""
_MODELS = {
    "Llama-3.1-8B": ((1, 64, 8, 256), (8192, 1024)),
    "Llama-3.1-8B" + _FP8: ((1, 64), ()),
    "Qwen2.5-1.5B": ((1, 64), (2048,)),
    "Qwen2.5-1.5B" + _IN_BLOCKS: ((1, 64), ()),
}
"""Batches of decode steps, and prompts; what goals are about comes first."""
_SMALL_MODELS = {"Llama-3.1-8B": ((1, 3), (40,)), "Qwen2.5-1.5B" + _IN_BLOCKS: ((2,), ())}
_CONTEXT, _SMALL_CONTEXT = 1024, 40
_STEPS, _SMALL_STEPS = 30, 3
_PROFILED_STEPS = 4
_PICTURES, _GRID, _SMALL_GRID = 8, (1, 34, 46), (1, 4, 6)
"""Patches (frames, rows, columns) of a picture of 640 x 480."""
_TOWER, _BESIDE = "Qwen2.5-VL-7B", "Llama-3.1-8B"
_SHARE = 0.3
"""The default of --visual-share."""


class _Models:
    """One engine at a time: memory has room for one."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._name: str | None = None
        self._engine: Engine | None = None

    def shape(self, name: str) -> Shape:
        return (SMALL if self.settings.small else SHAPES)[name.partition(",")[0]]

    def engine(self, name: str) -> Engine:
        from benchmarks.gpu.models.engine import Engine, Size

        if self._name != name or self._engine is None:
            self.clear()
            small = self.settings.small
            batches, prompts = (_SMALL_MODELS if small else _MODELS)[name]
            context, steps = (_SMALL_CONTEXT, _SMALL_STEPS) if small else (_CONTEXT, _STEPS)
            _, _, weights = name.partition(", ")
            size = Size(max(batches), context, max(prompts, default=1), steps + _PROFILED_STEPS, weights or "plain")
            self._engine, self._name = Engine(self.shape(name), size, self.settings), name
        return self._engine

    def clear(self) -> None:
        """Give the device's memory back."""
        import torch

        self._engine = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def run(checks: Checks, settings: Settings) -> None:
    models = _Models(settings)
    for name, (batches, prompts) in (_SMALL_MODELS if settings.small else _MODELS).items():
        checks.run(f"{name}, load", partial(_load, models, name))
        checks.run(f"{name}, graphs", partial(_graphs, models, name))
        for batch in batches:
            checks.run(f"{name}, decode, {batch}", partial(_decode, models, name, batch))
        if name == _BESIDE:
            checks.run(f"{name}, decode beside a tower", partial(_beside_tower, models, name, batches[1]))
        for tokens in prompts:
            checks.run(f"{name}, prompt of {tokens}", partial(_prompt, models, name, tokens))
    checks.run(f"{_TOWER}, tower", partial(_tower, models))


def _load(models: _Models, name: str) -> Figures:
    engine = models.engine(name)
    return {"s": engine.load_s, "blocks": engine.runner.num_blocks} | _memory()


def _graphs(models: _Models, name: str) -> Figures:
    """Fails if one could not be captured. On a CPU there are none."""
    found = models.engine(name).capture()
    assert found.made == found.wanted, "steps cannot be captured; the log says why"
    return {
        "graphs": found.made,
        "s": found.seconds,
        "bytes": found.nbytes,
        "bytes planned": found.planned_nbytes,
        "bytes of the largest step": models.engine(name).step_nbytes(),
    }


def _memory() -> dict[str, Any]:
    import torch

    return {"peak bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}


def _decode(models: _Models, name: str, batch: int) -> Figures:
    """Steps one after the other, then each launched before the one before is collected, then profiled ones, then
    some that are no graphs."""
    from benchmarks.gpu.models.engine import median
    from benchmarks.gpu.rates.ceilings import ceilings
    from benchmarks.gpu.rates.device import device_of
    from benchmarks.gpu.rates.profile import profiled

    settings, engine = models.settings, models.engine(name)
    steps, context = (_SMALL_STEPS, _SMALL_CONTEXT) if settings.small else (_STEPS, _CONTEXT)
    engine.start_decoding(batch, context)
    try:
        engine.decode_steps(min(5, steps))
        alone_s = median(engine.decode_steps(steps))
        overlapped_s = engine.overlapped_s(steps)
        work = partial(engine.overlapped_s, _PROFILED_STEPS)
        about = profiled(work, _PROFILED_STEPS + 1, device_of(settings))
        waits = engine.waits(_PROFILED_STEPS)
        about |= _beside_replays(engine.replay(), overlapped_s, settings)
        with engine.launch_by_launch():
            launched_s = engine.overlapped_s(steps)
    finally:
        engine.stop()
    weight_nbytes = 1 if _FP8 in name else 2
    floor_s = decode_s(models.shape(name).decoder, batch, context + steps, ceilings(settings), weight_nbytes)
    best_s = min(alone_s, overlapped_s)
    return {
        "ms a step": 1e3 * alone_s,
        "ms a step, overlapped": 1e3 * overlapped_s,
        "ms a step, overlapped, without graphs": 1e3 * launched_s,
        "ms of the floor": 1e3 * floor_s,
        "tokens/s": batch / best_s,
        "of the floor": floor_s / best_s,
        "waits of the host in launches": waits,
        **about,
        **_memory(),
    }


def _beside_replays(replay: Callable[[], object] | None, period_s: float, settings: Settings) -> Figures:
    """What a step's graph takes alone: of the device, which is then never left waiting, and of the host."""
    from benchmarks.gpu.rates.device import device_of
    from benchmarks.gpu.rates.idle import idle
    from benchmarks.gpu.rates.timing import Timer

    if replay is None:
        return {}
    timer = Timer(device_of(settings), small=settings.small)
    busy_s, host_s = timer.median_s(replay), timer.launch_s(replay)
    return {
        "ms of a replay": 1e3 * busy_s,
        "us of the host a replay": 1e6 * host_s,
        "idle of the device, by events": idle(period_s, busy_s),
    }


def _beside_tower(models: _Models, name: str, batch: int) -> Figures:
    """Decode steps alone, and while another process encodes pictures on the device: bounded, and not."""
    from benchmarks.gpu.models.flood import Flood
    from mmserve.runtime.step_times import StepTimes

    settings, engine = models.settings, models.engine(name)
    steps, context = (_SMALL_STEPS, _SMALL_CONTEXT) if settings.small else (_STEPS, _CONTEXT)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "times"
        times = StepTimes(path, 1)
        with Flood(settings, path) as flood:
            engine.start_decoding(batch, context)
            try:
                engine.decode_steps(2)
                found = _step_figures("alone", _announced_steps(engine, times, steps))
                for label, share in (("bounded", _SHARE), ("without a bound", 1.0)):
                    flood.begin(share)
                    started_s = time.perf_counter()
                    found |= _step_figures(label, _announced_steps(engine, times, steps))
                    seconds = time.perf_counter() - started_s
                    found[f"pictures/s, {label}"] = flood.end() / seconds
            finally:
                engine.stop()
    worst = "ms of the slowest 5 %, "
    return found | {"alone over bounded": found[worst + "alone"] / found[worst + "bounded"]}


def _announced_steps(engine: Engine, times: StepTimes, count: int) -> list[float]:
    """Seconds of each, as a rank tells them to visual servers."""
    found: list[float] = []
    for _ in range(count):
        times.write(0, 1, min(found[-8:], default=0.0))
        found += engine.decode_steps(1)
    times.write(0, 0, 0.0)
    return found


def _step_figures(label: str, seconds: list[float]) -> dict[str, float]:
    from benchmarks.gpu.models.engine import median

    worst = sorted(seconds)[-max(1, len(seconds) // 20) :]
    return {f"ms, {label}": 1e3 * median(seconds), f"ms of the slowest 5 %, {label}": 1e3 * sum(worst) / len(worst)}


def _prompt(models: _Models, name: str, tokens: int) -> Figures:
    from benchmarks.gpu.models.engine import median
    from benchmarks.gpu.rates.ceilings import ceilings

    engine = models.engine(name)
    engine.prompt_s(tokens)
    seconds = median([engine.prompt_s(tokens) for _ in range(5)])
    floor_s = prefill_s(models.shape(name).decoder, tokens, ceilings(models.settings))
    return {
        "ms": 1e3 * seconds,
        "ms of the floor": 1e3 * floor_s,
        "tokens/s": tokens / seconds,
        "of the floor": floor_s / seconds,
        **_memory(),
    }


def _tower(models: _Models) -> Figures:
    """A batch of pictures of 640 x 480."""
    import torch

    from benchmarks.gpu.models.weights import random_tower
    from benchmarks.gpu.rates.ceilings import ceilings
    from benchmarks.gpu.rates.device import device_of
    from benchmarks.gpu.rates.timing import Timer
    from mmserve.model_backend.vision.interface import ViewTensors

    models.clear()
    settings, shape = models.settings, models.shape(_TOWER).tower
    tower, device = random_tower(models.shape(_TOWER), settings), device_of(settings)
    grid = _SMALL_GRID if settings.small else _GRID
    patches = grid[0] * grid[1] * grid[2]
    views = ViewTensors(torch.randn(patches, shape.patch_nums).to(device), torch.tensor([grid], dtype=torch.int32))
    found: dict[str, Any] = {}
    for count in (1, 2) if settings.small else (1, _PICTURES):
        seconds = Timer(device, small=settings.small).median_s(partial(tower, [views] * count))
        floor_s = count * tower_operations(shape, patches) / ceilings(settings).operations
        found |= {f"ms of {count}": 1e3 * seconds, "of the floor": floor_s / seconds}
    return found | {"patches": patches}
