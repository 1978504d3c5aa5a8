"""Drives a ModelRunner as the router does, in the simplest way: freed blocks are not reused unless a test asks."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.load import load
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.arena import Arena
from mmserve.messages.logprobs import unpack
from mmserve.messages.media import MediaSpan, end_beside_images
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import BlockCopy, NewSequence, SequenceStep, StepPlan, StepResult
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.worker.model_runner import ModelRunner

BLOCK_TOKENS = 16
"""KV block size of the attention backends for a CPU, for sizes that are needed before there is a runner."""
GREEDY = SamplingParams(max_tokens=1000, temperature=0.0)


def deployment(directory: Path, **changes: Any) -> Deployment:
    """A deployment of a tiny checkpoint on the CPU in float32."""
    config = changes.pop("config", Config(model=str(directory), max_num_seqs=8))
    draft = changes.pop("draft", None)
    settings: dict[str, Any] = {
        "config": config,
        "model": changes.get("model") or load(directory),
        "draft": draft and load(draft),
        "served_name": "tiny",
        "device": "cpu",
        "dtype": "float32",
        "max_model_len": 256,
        "kv_tokens": 200 * BLOCK_TOKENS,
        "arena_nbytes": 1 << 20,
        "run_dir": str(directory),
        "hash_seed": 1,
        "url": "http://localhost:0",
        "version": "0",
    }
    made = Deployment(**(settings | changes))
    text = for_context(made.model.text, made.max_model_len)
    return replace(made, model=replace(made.model, text=text))


def make_runner(
    directory: Path, arena: Arena | None = None, platform: Platform | None = None, **changes: Any
) -> ModelRunner:
    """A loaded single-rank runner."""
    made = deployment(directory, **changes)
    return ModelRunner(
        made,
        TpGroup(),
        arena,
        platform or platform_for(made.device, made.dtype, activation_dtype=made.activation_dtype),
        lambda done, total, unit: None,
    )


def spoil_embedding(runner: ModelRunner, token: int) -> None:
    """Make the embedding of ``token`` NaN. The runner must have answered nothing yet."""
    method: Any = runner._model.embedding.method
    if hasattr(method, "packed"):
        method.weight = method.rows(torch.arange(method.out_size))
    method.weight[token] = math.nan
    method.finish_loading()


@dataclass
class Running:
    """One running sequence."""

    slot: int
    tokens: list[int]
    num_prompt: int
    sampling: SamplingParams = GREEDY
    spans: tuple[MediaSpan, ...] = ()
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    known: bool = False
    """True once a step plan has introduced it to the ranks."""
    recycled: list[int] = field(default_factory=list)
    """Blocks of ended sequences, used before new ones."""
    num_prompt_logprobs: int = 0
    """Rows of prompt log-probabilities that were returned before."""
    pooling: bool = False
    shared: tuple[int, ...] = ()
    """Blocks of a prefix-cache hit, listed in its first step."""
    copied: tuple[int, int] = (-1, 0)
    """A block, and how many of its tokens are copied after the shared blocks."""
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    """Of each token generated since it was added, unpacked."""

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


class Engine(Protocol):
    """A ModelRunner, or all ranks of a server."""

    @property
    def block_tokens(self) -> int: ...

    def step(self, plan: StepPlan) -> StepResult: ...


class Driver:
    """Plans steps for the sequences that are added to it, of up to ``chunk`` tokens of each.

    ``whole_images``: no chunk ends inside an image.
    """

    def __init__(self, engine: Engine, chunk: int = 1000, *, whole_images: bool = False) -> None:
        self._engine, self.chunk, self._whole_images = engine, chunk, whole_images
        self._new_blocks = itertools.count()
        self._step_id = 0
        self.running: list[Running] = []
        self.freed: list[int] = []
        self.failures: dict[int, Any] = {}

    def add(self, slot: int, prompt: Sequence[int], **settings: Any) -> Running:
        sequence = Running(slot, list(prompt), settings.pop("num_prompt", len(prompt)), **settings)
        sequence.computed = len(sequence.shared) * self._engine.block_tokens + sequence.copied[1]
        self.running.append(sequence)
        return sequence

    def drop(self, sequence: Running) -> None:
        """Preempt or end: the slot is freed by the next plan."""
        self.running.remove(sequence)
        self.freed.append(sequence.slot)

    def step(self) -> StepResult:
        """Run one step that computes the next chunk or token of every running sequence."""
        new, copies, steps = [], [], []
        for sequence in self.running:
            steps.append(self._advance(sequence))
            if not sequence.known:
                new.append(self._new(sequence))
                source, num_tokens = sequence.copied
                target = sequence.blocks[len(sequence.shared)]
                copies += [BlockCopy(source=source, target=target, num_tokens=num_tokens)] if num_tokens else []
            sequence.known = True
        plan = StepPlan(
            step_id=self._step_id, free=tuple(self.freed), new=tuple(new), copies=tuple(copies), steps=tuple(steps)
        )
        self._step_id += 1
        self.freed = []
        result = self._engine.step(plan)
        by_slot = {sequence.slot: sequence for sequence in self.running}
        for slot, tokens in result.tokens:
            by_slot[slot].tokens += tokens
        for slot, packed in result.logprobs:
            by_slot[slot].logprobs += map(unpack, packed)
        for failure in result.failures:
            self.failures[failure.slot] = failure
            self.drop(by_slot[failure.slot])
        return result

    def run(self, num_tokens: int, may_fail: Container[int] = ()) -> None:
        """Step until every sequence has ``num_tokens`` of output; free each one that has.

        Raises AssertionError if a sequence fails whose slot is not in ``may_fail``.
        """
        while self.running:
            unexpected = [failure for failure in self.step().failures if failure.slot not in may_fail]
            assert not unexpected, unexpected
            for sequence in [s for s in self.running if len(s.output) >= num_tokens]:
                self.drop(sequence)

    @staticmethod
    def _new(sequence: Running) -> NewSequence:
        return NewSequence(
            slot=sequence.slot,
            token_ids=array("q", sequence.tokens).tobytes(),
            num_prompt_tokens=sequence.num_prompt,
            spans=sequence.spans,
            sampling=sequence.sampling,
            num_prompt_logprobs=sequence.num_prompt_logprobs,
            pooling=sequence.pooling,
        )

    def _advance(self, sequence: Running) -> SequenceStep:
        start = sequence.computed
        num_tokens = min(self.chunk, len(sequence.tokens) - start)
        if self._whole_images:
            num_tokens = end_beside_images(sequence.spans, start, start + num_tokens) - start
        end = start + num_tokens
        fresh = list(sequence.shared) if not sequence.known else []
        sequence.blocks += fresh
        while len(sequence.blocks) * self._engine.block_tokens < end:
            block = sequence.recycled.pop(0) if sequence.recycled else next(self._new_blocks)
            sequence.blocks.append(block)
            fresh.append(block)
        sequence.computed = end
        return SequenceStep(
            slot=sequence.slot,
            start=start,
            num_tokens=num_tokens,
            new_blocks=tuple(fresh),
            sample=end == len(sequence.tokens) and not sequence.pooling and sequence.sampling.max_tokens > 0,
        )
