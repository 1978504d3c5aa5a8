"""One rank's engine in this process reads a text token by token and returns each token's probability and step time.

Every step is a decode step, because answers are written in decode steps.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mmserve.checkpoint.load import load
from mmserve.checkpoint.locate import locate
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, SequenceStep, StepPlan
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.linear import LinearLayer
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.worker.forward_batch import ForwardBatch
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.supervisor.startup import machine, plan

_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True)
class Read:
    """``nll``: negative log-likelihood of each token after the first, in nats; ``step_s``: the median step."""

    nll: list[float]
    step_s: float


class Engine:
    """A model in one process, one rank."""

    def __init__(self, config: Config) -> None:
        """Load the model. Raises StartupError."""
        deployment = plan.make(config, load(locate(config.model)), machine.look(), run_dir="", url="")
        platform = platform_for(deployment.device, deployment.dtype, activation_dtype=deployment.activation_dtype)
        platform.set_threads(deployment.cpu_threads)
        platform.release_torch_threads()
        self._runner = _Observed(deployment, platform)
        self._runner.warm_up()
        self.dtype = deployment.dtype

    @property
    def matrices_nbytes(self) -> int:
        """What a step reads of the model's matrices: of an embedding that is not the head it reads a few rows alone.

        The kernels must be in use: other methods keep no packed weights.
        """
        model: Any = self._runner._model
        weights = model.decoder_weights()
        linears = {module for module in model.modules() if isinstance(module, LinearLayer)}
        if weights.embedding is not weights.head:
            linears.remove(weights.embedding)
        return sum(method.packed.nbytes for method in {each.method for each in linears})  # type: ignore[attr-defined]

    @property
    def token_cache_nbytes(self) -> int:
        """Keys and values of one token, which each later step of its sequence reads."""
        cache = self._runner._kv  # [layers, blocks, ...]
        return int(cache.nbytes // cache.shape[1] // self._runner.block_tokens)

    def read(self, texts: Sequence[Sequence[int]]) -> Read:
        """Read texts of equal length in one batch, one token of each a step. ``nll`` is that of the first text."""
        nll, times_s = [], []
        for position in range(len(texts[0]) - 1):
            step = _step(texts, position, self._runner.block_tokens)
            started_s = time.perf_counter()
            result = self._runner.step(step)
            times_s.append(time.perf_counter() - started_s)
            assert not result.failures, result.failures
            logits = self._runner.logits[0].float()
            nll.append(float(logits.logsumexp(dim=-1) - logits[texts[0][position + 1]]))
        self._runner.step(StepPlan(step_id=0, free=tuple(range(len(texts)))))
        return Read(nll, statistics.median(times_s))

    def repeated(self, texts: Sequence[Sequence[int]]) -> Callable[[], None]:
        """The step that computes the last but one token of each text and chooses the next. To be called again and
        again: it writes the same keys and values each time. Raises AssertionError if it is not one call of the
        kernels."""
        for position in range(len(texts[0]) - 1):
            self._runner.step(_step(texts, position, self._runner.block_tokens))
        assert self._runner.decode is not None
        return self._runner.decode


class _Observed(ModelRunner):
    """Keeps the logits [S, vocab] of its last step, and the step itself if it is one call of the kernels."""

    logits: torch.Tensor
    decode: Callable[[], None] | None = None

    def __init__(self, deployment: Deployment, platform: Platform) -> None:
        super().__init__(deployment, TpGroup(), None, platform, lambda done, total, what: None)

    def _compute(self, batch: ForwardBatch) -> Any:
        computed = super()._compute(batch)
        assert computed.logits is not None
        # Rows of equally long contexts are in the plan's order. Cloned because sampling edits logits in place.
        self.logits = computed.logits.clone()
        return computed

    def _replay(self, batch: ForwardBatch) -> Any:
        computed = super()._replay(batch)
        self.decode = None if computed is None else partial(super()._replay, batch)
        return computed


def _step(texts: Sequence[Sequence[int]], position: int, block_tokens: int) -> StepPlan:
    """A plan that submits all texts again, with the true token in place of the sampled one and the same KV blocks."""
    num_blocks = position // block_tokens + 1
    most_blocks = -(-len(texts[0]) // block_tokens)
    new = tuple(
        NewSequence(
            slot=slot,
            token_ids=array("q", text[: position + 1]).tobytes(),
            num_prompt_tokens=position + 1,
            spans=(),
            sampling=_GREEDY,
        )
        for slot, text in enumerate(texts)
    )
    steps = tuple(
        SequenceStep(
            slot=slot,
            start=position,
            num_tokens=1,
            new_blocks=tuple(range(slot * most_blocks, slot * most_blocks + num_blocks)),
            sample=True,
        )
        for slot in range(len(texts))
    )
    return StepPlan(step_id=0, new=new, steps=steps)
