"""Steps of a rank in this process. Steps of free and of constrained sequences alternate."""

from __future__ import annotations

import itertools
import os
import statistics
import time

import torch

from benchmarks.load.report import Row
from benchmarks.structured.schemas import of_5_kb
from mmserve.checkpoint.locate import locate
from mmserve.config.config import Config
from mmserve.grammar.sources import json_schema_grammar
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.ranks.engine import Driver, make_runner

_STEPS = 300


def steps(checkpoint: str, count: int) -> Row:
    """Medians of a rank's steps with ``count`` free sequences, and with as many constrained ones."""
    model = locate(checkpoint)
    config = Config(model=str(model), max_num_seqs=2 * count, jump_forward=False)
    cores = len(os.sched_getaffinity(0))
    runner = make_runner(model, config=config, cpu_threads=cores, max_model_len=512, kv_tokens=2 * count * 512)
    platform_for("cpu", "float32").set_threads(cores)
    torch.set_num_threads(1)  # as in a rank
    grammar = json_schema_grammar(of_5_kb(0), "schema")
    drivers = (Driver(runner), Driver(runner))
    drivers[1]._new_blocks = itertools.count(count * 512 // runner.block_tokens)
    for number, (driver, text) in enumerate(zip(drivers, ("", grammar), strict=True)):
        for slot in range(count):
            sampling = SamplingParams(max_tokens=1000, seed=slot, grammar=text)
            driver.add(number * count + slot, list(range(100, 130)), sampling=sampling)
    _compile(runner, grammar)
    times: dict[str, list[float]] = {"free": [], "constrained": [], "prepare": []}
    for _ in range(_STEPS):
        for driver, name in zip(drivers, ("free", "constrained"), strict=True):
            started_s = time.perf_counter()
            result = driver.step()
            ended_s = time.perf_counter()
            if result.failures or result.deferred:
                raise RuntimeError("a sequence got no token")
            runner.prepare()
            times[name].append(ended_s - started_s)
            if driver is drivers[1]:
                times["prepare"].append(time.perf_counter() - ended_s)
    free, constrained, prepare = (statistics.median(values) * 1e3 for values in times.values())
    return {
        "choices": count,
        "free step ms": free,
        "constrained step ms": constrained,
        "cost %": 100 * (constrained / free - 1),
        "prepare ms": prepare,
    }


def _compile(runner: ModelRunner, grammar: str) -> None:
    """So that no sequence is deferred."""
    sampler = runner._sampling._sampler
    assert sampler is not None
    assert sampler._grammars is not None
    sampler._grammars._compiler.start(grammar, ()).future.result()
