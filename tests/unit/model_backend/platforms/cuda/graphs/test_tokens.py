"""A model whose decode steps are replayed answers as one whose steps are computed layer by layer, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmserve.config.config import Config
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, Mask, StepLimits
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.graphs.decode import CapturedDecodes
from mmserve.model_backend.platforms.cuda.sampling import TritonSampling
from mmserve.model_backend.platforms.decode_graphs import DecodeGraphs, GraphParts
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.platforms.sampling import TokenSampling
from tests.fakes.devices.graph_capture import Recorder
from tests.fakes.models.checkpoints import make_llama
from tests.fakes.ranks.engine import Driver, make_runner
from tests.unit.model_backend.platforms.cuda.attention.test_tokens import CPU, TILING, Interpreted
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter


class Replaying(Interpreted):
    """Decode steps are recorded and replayed, as a GPU's graphs are."""

    def __init__(self) -> None:
        super().__init__(CPU, torch.float32)
        self.capture = Recorder()

    def sampling(self) -> TokenSampling:
        return TritonSampling(self.transfers())

    def decode_graphs(self, parts: GraphParts) -> DecodeGraphs | None:
        return CapturedDecodes(parts, self.transfers(), self.capture)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), head_dim=16)


def answers(directory: Path, platform: Any) -> list[list[int]]:
    """Of sequences that come and go, so that steps have three rows, five and four, some beside a prompt."""
    runner = make_runner(directory, platform=platform, config=Config(model=str(directory), max_num_seqs=6))
    driver = Driver(runner)
    prompts = [[3 + (7 * i + 5 * k) % 90 for k in range(length)] for i, length in enumerate((17, 5, 3, 2, 9))]
    drawn = SamplingParams(max_tokens=100, temperature=0.9, top_p=0.95, seed=3)
    running = [driver.add(slot, prompt) for slot, prompt in enumerate(prompts[:2])]
    running.append(driver.add(2, prompts[2], sampling=drawn))
    for _ in range(3):
        driver.step()
    running += [driver.add(slot + 3, prompt) for slot, prompt in enumerate(prompts[3:])]
    driver.step()
    driver.step()
    driver.drop(running[1])
    driver.step()
    assert not driver.failures
    return [sequence.output for sequence in running]


@needs_interpreter
def test_tokens_are_those_of_steps_computed_layer_by_layer(directory: Path) -> None:
    replaying = Replaying()
    assert answers(directory, replaying) == answers(directory, TorchPlatform(CPU, torch.float32))
    assert replaying.capture.num_captures == 2, "of 4 and 6 rows"
    assert replaying.capture.num_replays == 4, "all steps without prompts"


@needs_interpreter
def test_all_rungs_are_captured_before_requests_come(directory: Path) -> None:
    platform, told = Replaying(), []
    config = Config(model=str(directory), max_num_seqs=2, max_num_batched_tokens=16, max_step_ms=0.001)
    runner = make_runner(directory, platform=platform, config=config)
    runner._progress = lambda done, total, unit: told.append((done, total, unit))
    runner.warm_up()
    assert platform.capture.num_captures == 2, "of 1 and 2 rows"
    assert told == [(done, 2, "graphs") for done in range(3)]
    before = platform.capture.num_replays
    driver = Driver(runner)
    driver.add(0, [3, 4, 5])
    driver.run(2)
    assert (platform.capture.num_captures, platform.capture.num_replays > before) == (2, True)


def test_no_step_of_single_rows_needs_more_room_than_there_is_from_the_start() -> None:
    """Graphs that were captured before it stay valid."""
    spec = AttentionSpec(2, 1, 16, (Mask(), Mask(20)))
    limits = StepLimits(max_tokens=16, max_seqs=4, max_blocks=40, block_tokens=16)
    backend = TritonAttention(spec, CPU, TILING, num_programs=2)
    builder = backend.builder(limits)
    tables, slots = np.zeros((4, 40), dtype=np.int64), np.arange(4)
    keys = set()
    for length in (1, 640):
        step = AttentionInput(slots, np.full(4, length - 1), np.ones(4, dtype=np.int64), tables, slots)
        keys.add(backend.graph_key(builder.build(step)))
    assert len(keys) == 1
    assert None not in keys
    prompt = AttentionInput(slots[:1], np.zeros(1, dtype=np.int64), np.full(1, 17), tables, np.arange(17))
    assert backend.graph_key(builder.build(prompt)) is None
