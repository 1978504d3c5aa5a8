"""One rank's engine: ``step(plan)`` -> tokens. All ranks run it on the same plans and stay in lockstep.

Everything that can be wrong with a single sequence is found before the first collective of a step, or comes to
every rank with the broadcast of the tokens. Knows no socket.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mmserve.checkpoint.load import check_tp
from mmserve.config.deployment import Deployment
from mmserve.ipc.arena import Arena
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, SequenceStep, SlotFailure, StepPlan, StepResult
from mmserve.model_backend.attention.interface import AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder
from mmserve.model_backend.loader.registry import family_of
from mmserve.model_backend.loader.weights import Progress
from mmserve.model_backend.platforms.device import is_fatal_device_error
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.worker import kv_cache
from mmserve.model_backend.worker.forward_batch import Batch, build
from mmserve.model_backend.worker.image_inputs import ImageEmbeddingWriter
from mmserve.model_backend.worker.input_batch import InputBatch
from mmserve.model_backend.worker.sampling.logprobs import ModelLogprobs
from mmserve.model_backend.worker.sampling.sampler import NOT_FINITE, SampleRow, sample
from mmserve.runtime.errors import StartupError
from mmserve.runtime.startup_timer import StartupTimer

logger = logging.getLogger(__name__)


class _Computed(NamedTuple):
    """What came of a plan's steps, as in StepResult; ``logprobs`` on rank 0 alone."""

    tokens: Sequence[tuple[int, tuple[int, ...]]] = ()
    failures: Sequence[SlotFailure] = ()
    logprobs: Sequence[tuple[int, tuple[bytes, ...]]] = ()


class ModelRunner:
    """Weights, KV cache and slots of one rank."""

    def __init__(
        self,
        deployment: Deployment,
        tp: TpGroup,
        arena: Arena | None,
        platform: Platform,
        progress: Progress,
        phases: StartupTimer | None = None,
    ) -> None:
        phases = phases or StartupTimer()
        spec = deployment.model
        check_tp(spec, tp.size)
        self._tp, self._platform, self._vocab_size = tp, platform, spec.text.vocab_size
        heads = AttentionSpec(tp.share(spec.text.num_heads), tp.share(spec.text.num_kv_heads), spec.text.head_dim)
        self._attention = platform.attention(heads, platform.dtype)
        self.block_tokens = self._attention.block_sizes[0]
        self._model = load_decoder(
            spec, platform, self._attention, tp, deployment.config.quantization, progress, phases.end
        )
        phases.end("packing")
        self._kv = kv_cache.allocate(deployment, tp, platform, self._attention, self.block_tokens)
        self._slots = InputBatch(
            deployment.config.max_num_seqs,
            deployment.max_model_len,
            self.num_blocks,
            self.block_tokens,
            self._vocab_size,
        )
        config, max_blocks = deployment.config, self._slots.blocks.shape[1]
        limits = StepLimits(config.max_num_batched_tokens, config.max_num_seqs, max_blocks, self.block_tokens)
        self._metadata_builder = self._attention.builder(limits)
        self._executor = platform.executor(self._model, limits)
        self._positions = family_of(spec.family).positions
        self._splicer = ImageEmbeddingWriter(arena, spec.text.hidden_size, tp, platform)

    @property
    def num_blocks(self) -> int:
        return self._kv.shape[1]

    def warm_up(self) -> None:
        """Prefill and decode once, so that the first request pays for no first times. Raises StartupError on NaN."""
        greedy = SamplingParams(max_tokens=2, temperature=0.0)
        new = NewSequence(slot=0, token_ids=bytes(8 * 8), num_prompt_tokens=8, spans=(), sampling=greedy)
        prefill = SequenceStep(slot=0, start=0, num_tokens=8, new_blocks=(0,), sample=True)
        decode = SequenceStep(slot=0, start=8, num_tokens=1, new_blocks=(), sample=True)
        for plan in (StepPlan(step_id=0, new=(new,), steps=(prefill,)), StepPlan(step_id=0, steps=(decode,))):
            if failures := self.step(plan).failures:
                raise StartupError(f"the model's first forward pass fails: {failures[0].message}; try another --dtype")
        self._slots.apply(StepPlan(step_id=0, free=(0,)))

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Apply the plan's diff and compute its steps."""
        started_s = time.perf_counter()
        refused = self._slots.apply(plan)
        failures = [_failure(step.slot, refused[step.slot]) for step in plan.steps if step.slot in refused]
        steps = [step for step in plan.steps if step.slot not in refused]
        self._attention.copy_tokens(self._kv, plan.copies)
        computed = self._compute(steps)
        return StepResult(
            step_id=plan.step_id,
            tokens=tuple(computed.tokens),
            failures=(*failures, *computed.failures),
            logprobs=tuple(computed.logprobs),
            forward_s=time.perf_counter() - started_s,
        )

    def _compute(self, steps: Sequence[SequenceStep]) -> _Computed:
        if not steps:
            return _Computed()
        try:
            batch = build(
                self._slots, steps, self._vocab_size, self._platform.device, self._metadata_builder, self._positions
            )
            hidden = self._model.embed(batch.token_ids)
            if unread := self._splicer.place(self._slots, batch, hidden):
                return self._compute_without(unread, steps)
            chosen, logprobs = self._choose(batch, self._forward(batch, hidden))
        except Exception as error:
            # A request boundary: whatever the step met, the engine lives on, but for two things after which it has to
            # restart. Several ranks that left the step at different places would never meet again; and after an error
            # of the device itself (an illegal access, say) all that this process asks of it fails as well.
            if self._tp.size > 1 or is_fatal_device_error(error):
                raise
            logger.exception("a step with %d sequences failed", len(steps))
            return _Computed(failures=[_failure(step.slot, f"internal error: {error}") for step in steps])
        tokens = []
        for slot, token in zip(batch.sample_slots, chosen, strict=True):
            if token != NOT_FINITE:
                self._slots.append(slot, token)
                tokens.append((slot, (token,)))
        broken = [slot for slot, token in zip(batch.sample_slots, chosen, strict=True) if token == NOT_FINITE]
        return _Computed(tokens, [_failure(slot, "the model's output is not finite") for slot in broken], logprobs)

    def _compute_without(self, unread: Sequence[SlotFailure], steps: Sequence[SequenceStep]) -> _Computed:
        """Again for the steps that have all their images, on every rank alike."""
        failed = {failure.slot for failure in unread}
        computed = self._compute([step for step in steps if step.slot not in failed])
        return computed._replace(failures=[*unread, *computed.failures])

    def _forward(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor | None:
        """Logits [S, vocab] of the rows that sample, on rank 0; None on other ranks or when no row samples."""
        hidden = self._executor.forward(hidden, batch.positions, self._kv, batch.metadata, batch.sample_rows)
        return self._model.logits(hidden) if batch.sample_slots else None

    def _choose(
        self, batch: Batch, logits: torch.Tensor | None
    ) -> tuple[Sequence[int], Sequence[tuple[int, tuple[bytes, ...]]]]:
        """A token id (or NOT_FINITE) for each slot that samples, the same on every rank; and, on rank 0, (slot,
        log-probabilities) of those that asked."""
        chosen: list[int] = [NOT_FINITE] * len(batch.sample_slots)
        logprobs: list[tuple[int, tuple[bytes, ...]]] = []
        if logits is not None:
            rows = [self._sample_row(slot) for slot in batch.sample_slots]
            models = ModelLogprobs(logits, rows)
            chosen = sample(logits, rows)
            logprobs = [(batch.sample_slots[row], (packed,)) for row, packed in models.of(chosen)]
        if self._tp.size > 1 and chosen:
            chosen = self._tp.broadcast(torch.tensor(chosen, device=self._platform.device)).tolist()
        return chosen, logprobs

    def _sample_row(self, index: int) -> SampleRow:
        slot = self._slots[index]
        return SampleRow(slot.sampling, slot.tokens, slot.num_prompt_tokens)


def _failure(slot: int, message: str) -> SlotFailure:
    return SlotFailure(slot=slot, media_lost=False, message=message)
