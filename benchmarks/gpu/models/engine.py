"""One rank's engine in this process, with random weights of a published shape, made on the device."""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch

from benchmarks.gpu.checks import Settings
from benchmarks.gpu.models.shapes import Shape
from benchmarks.gpu.models.weights import Weights, random_decoder, spec_of
from benchmarks.gpu.rates.device import device_of
from benchmarks.gpu.rates.idle import Marks
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.gpu_memory import graphs_nbytes
from mmserve.config.resolved.graph_ladder import rung_of
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, SequenceStep, StepPlan
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.worker import model_runner
from mmserve.model_backend.worker.memory_profile import step_peak_nbytes
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.model_backend.worker.warm_up import WarmUp

_GREEDY = SamplingParams(max_tokens=100_000, temperature=0.0)


class Size(NamedTuple):
    """Of the largest steps that are measured."""

    batch: int
    context: int
    prompt: int
    steps: int
    weights: Weights = "plain"

    @property
    def tokens(self) -> int:
        """Of one sequence while its decode steps are measured."""
        return self.context + 3 * self.steps + 16


class Captures(NamedTuple):
    """``wanted`` graphs, of which ``made`` are there, and the bytes that they took and were planned."""

    wanted: int
    made: int
    seconds: float
    nbytes: int
    planned_nbytes: int


class Engine:
    """Decode steps and prompts of one shape. Its KV cache is full of random numbers, so no prompt is needed first."""

    def __init__(self, shape: Shape, size: Size, settings: Settings) -> None:
        device = device_of(settings)
        self._on_gpu = device.type == "cuda"
        self._size, self.spec = size, spec_of(shape)
        self._rng = random.Random(settings.seed)
        self._generator = torch.Generator(device).manual_seed(settings.seed)
        dtype = "bfloat16" if device.type == "cuda" else "float32"
        length = max(size.tokens, size.prompt + 1)
        config = Config(
            model="random",
            max_num_seqs=size.batch,
            max_num_batched_tokens=max(size.prompt, 16),
            quantization="fp8" if size.weights == "FP8" else "none",
        )
        deployment = Deployment(
            config=config,
            model=self.spec,
            served_name="random",
            device=settings.device,  # type: ignore[arg-type]
            dtype=dtype,  # type: ignore[arg-type]
            max_model_len=length,
            kv_tokens=max(size.batch * (size.tokens + 128), length + 128),
            arena_nbytes=0,
            run_dir="",
            hash_seed=1,
            url="",
            version="",
        )
        platform = platform_for(device.type, dtype)
        started_s = time.perf_counter()
        made = partial(random_decoder, size.weights, self._generator)
        with mock.patch.object(model_runner, "load_decoder", made):
            self.runner = ModelRunner(deployment, TpGroup(), None, platform, lambda done, total, unit: None)
        with torch.inference_mode():
            self.runner._kv.normal_(generator=self._generator)
        self.load_s = time.perf_counter() - started_s
        self._step_id = 0
        self._deployment, self._platform = deployment, platform

    def capture(self) -> Captures:
        """Of a graph for each number of rows, as at the start of a server."""
        runner, device = self.runner, self._platform.device
        rungs, before = self._rungs(), self._held_nbytes()
        started_s = time.perf_counter()
        warm_up = WarmUp(runner.step, TpGroup(), device, runner.block_tokens)
        warm_up.graphs(rungs, runner.num_blocks, lambda done, total, unit: None)
        seconds = time.perf_counter() - started_s
        step_nbytes = self.step_nbytes()
        rows, vocab_size = self._deployment.config.max_num_batched_tokens, self.spec.text.vocab_size
        planned = graphs_nbytes(rungs, step_nbytes, rows, vocab_size)
        return Captures(len(rungs), len(self._rungs()), seconds, self._held_nbytes() - before, planned)

    def step_nbytes(self) -> int:
        """That the largest step computes in, as a rank measures it at start."""
        runner = self.runner
        return step_peak_nbytes(self._deployment, runner._model, self._platform, runner._attention, runner.block_tokens)

    @contextmanager
    def launch_by_launch(self) -> Iterator[None]:
        """Within it no step is a graph."""
        runner, replaying = self.runner, self.runner._graphs
        runner._graphs = None
        try:
            yield
        finally:
            runner._graphs = replaying

    def _rungs(self) -> Sequence[int]:
        return () if self.runner._graphs is None else self.runner._graphs.rungs

    def _held_nbytes(self) -> int:
        """Of the device's memory, by this process."""
        return torch.cuda.memory_reserved() if self._platform.device.type == "cuda" else 0

    def start_decoding(self, batch: int, context: int) -> None:
        """So many sequences, of which all but the last token count as computed; the first decode step is made."""
        self._batch, self._position = batch, context - 1
        blocks = -(-self._size.tokens // self.runner.block_tokens)
        new = tuple(self._sequence(slot, context) for slot in range(batch))
        steps = tuple(
            SequenceStep(slot, context - 1, 1, tuple(range(slot * blocks, (slot + 1) * blocks)), True)
            for slot in range(batch)
        )
        self._checked(self.runner.step(self._plan(new=new, steps=steps)))

    def decode_steps(self, count: int) -> list[float]:
        """Seconds of each step, one after the other."""
        found = []
        for _ in range(count):
            plan = self._next()
            started_s = time.perf_counter()
            self._checked(self.runner.step(plan))
            found.append(time.perf_counter() - started_s)
        return found

    def overlapped_s(self, count: int) -> float:
        """Seconds of a step, each launched before the result of the one before is collected."""
        marks = Marks(self._platform.device)
        before = self.runner.launch(self._next())
        marks.mark()
        for _ in range(count):
            launched = self.runner.launch(self._next())
            marks.mark()
            self._checked(self.runner.collect(before))
            before = launched
        self._checked(self.runner.collect(before))
        return marks.period_s()

    def replay(self) -> Callable[[], object] | None:
        """Of the graph that the sequences' steps take, on the inputs of the last one; None where there is none."""
        graphs: Any = self.runner._graphs
        rung = None if graphs is None else rung_of(self._batch, graphs.rungs)
        return None if rung is None else graphs._graphs[rung].replay  # type: ignore[no-any-return]

    def waits(self, count: int) -> int:
        """How often so many launches made the host wait for the device. Always 0 on a CPU."""
        with contextlib.ExitStack() as stack:
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            if self._on_gpu:
                torch.cuda.set_sync_debug_mode("warn")  # it says nothing of events, for which results wait
                stack.callback(torch.cuda.set_sync_debug_mode, "default")
            launched = [self.runner.launch(self._next()) for _ in range(count)]
        for each in launched:
            self._checked(self.runner.collect(each))
        # Torch warns once of the mode itself, too.
        return sum("called a synchronizing" in str(warning.message) for warning in caught)

    def stop(self) -> None:
        """The sequences end."""
        self.runner.step(self._plan(free=tuple(range(self._batch))))

    def prompt_s(self, tokens: int) -> float:
        """Seconds of a prompt in one step."""
        blocks = tuple(range(-(-tokens // self.runner.block_tokens)))
        plan = self._plan(new=(self._sequence(0, tokens),), steps=(SequenceStep(0, 0, tokens, blocks, True),))
        started_s = time.perf_counter()
        self._checked(self.runner.step(plan))
        seconds = time.perf_counter() - started_s
        self.runner.step(self._plan(free=(0,)))
        return seconds

    def _sequence(self, slot: int, length: int) -> NewSequence:
        ids = array("q", self._rng.choices(range(self.spec.text.vocab_size), k=length)).tobytes()
        return NewSequence(slot=slot, token_ids=ids, num_prompt_tokens=length, spans=(), sampling=_GREEDY)

    def _next(self) -> StepPlan:
        self._position += 1
        return self._plan(steps=tuple(SequenceStep(slot, self._position, 1, (), True) for slot in range(self._batch)))

    def _plan(self, **parts: Any) -> StepPlan:
        self._step_id += 1
        return StepPlan(step_id=self._step_id, **parts)

    @staticmethod
    def _checked(result: Any) -> None:
        assert not result.failures, result.failures[0].message


def median(values: Sequence[float]) -> float:
    """Of step times."""
    return sorted(values)[len(values) // 2]
