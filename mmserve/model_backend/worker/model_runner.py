"""Runs step plans on one rank: ``launch`` issues a plan, ``collect`` returns its tokens.

All ranks run the same plans and must call the same collectives. So a problem of one sequence is handled in one of two
ways: all ranks find it by the same check before the step's first collective and leave the sequence out, or rank 0 finds
it, and the broadcast of the tokens has a negative number in place of the sequence's token.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np
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
from mmserve.model_backend.worker.forward_batch import ForwardBatch, build_forward_batch
from mmserve.model_backend.worker.image_inputs import ImageEmbeddingWriter
from mmserve.model_backend.worker.input_batch import InputBatch, Slot
from mmserve.model_backend.worker.sampling.logprobs import ModelLogprobs
from mmserve.model_backend.worker.sampling.sampler import FAILURES, Sampler, SampleRow
from mmserve.runtime.errors import StartupError
from mmserve.runtime.startup_timer import StartupTimer

logger = logging.getLogger(__name__)


@dataclass
class InFlight:
    """A launched plan whose result has not been collected."""

    step_id: int
    started_s: float
    failures: list[SlotFailure] = field(default_factory=list)
    slots: Sequence[int] = ()
    """Slots that sample, in the order of ``tokens``."""
    sequences: Sequence[Slot] = ()
    """The sequences in ``slots``."""
    tokens: torch.Tensor | None = None
    """int64 [S] on the device: token ids or keys of FAILURES."""
    logprobs: ModelLogprobs | None = None
    """On rank 0."""
    known_tokens: Sequence[int] | None = None
    """``tokens`` on the host, once they have been read."""


class ModelRunner:
    """Owns weights, KV cache and sequences of one rank."""

    def __init__(
        self,
        deployment: Deployment,
        tp: TpGroup,
        arena: Arena | None,
        platform: Platform,
        progress: Progress,
        startup_timer: StartupTimer | None = None,
    ) -> None:
        startup_timer = startup_timer or StartupTimer()
        spec = deployment.model
        check_tp(spec, tp.size)
        self._tp, self._platform, self._vocab_size = tp, platform, spec.text.vocab_size
        heads = AttentionSpec(tp.share(spec.text.num_heads), tp.share(spec.text.num_kv_heads), spec.text.head_dim)
        self._attention = platform.attention(heads, platform.dtype)
        self.block_tokens = self._attention.block_sizes[0]
        self._model = load_decoder(
            spec, platform, self._attention, tp, deployment.config.quantization, progress, startup_timer.end
        )
        startup_timer.end("packing")
        self._kv = kv_cache.allocate(deployment, tp, platform, self._attention, self.block_tokens)
        self._input_batch = InputBatch(
            deployment.config.max_num_seqs,
            deployment.max_model_len,
            self.num_blocks,
            self.block_tokens,
            self._vocab_size,
        )
        config, max_blocks = deployment.config, self._input_batch.blocks.shape[1]
        limits = StepLimits(config.max_num_batched_tokens, config.max_num_seqs, max_blocks, self.block_tokens)
        self._metadata_builder = self._attention.builder(limits)
        self._executor = platform.executor(self._model, limits)
        self._positions = family_of(spec.family).positions
        self._image_writer = ImageEmbeddingWriter(arena, spec.text.hidden_size, tp, platform)
        self._sampler = Sampler(self._vocab_size, platform.device) if tp.rank == 0 else None
        self._last_token = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=platform.device)
        """By slot: the token that it sampled last. Decode rows read it, so no id has to come from the host."""
        self._uncollected: deque[InFlight] = deque()

    @property
    def num_blocks(self) -> int:
        return self._kv.shape[1]

    def warm_up(self) -> None:
        """Prefill and decode once, so that no request pays for first calls. Raises StartupError on NaN."""
        greedy = SamplingParams(max_tokens=2, temperature=0.0)
        new = NewSequence(slot=0, token_ids=bytes(8 * 8), num_prompt_tokens=8, spans=(), sampling=greedy)
        prefill = SequenceStep(slot=0, start=0, num_tokens=8, new_blocks=(0,), sample=True)
        decode = SequenceStep(slot=0, start=8, num_tokens=1, new_blocks=(), sample=True)
        for plan in (StepPlan(step_id=0, new=(new,), steps=(prefill,)), StepPlan(step_id=0, steps=(decode,))):
            if failures := self.step(plan).failures:
                raise StartupError(f"the model's first forward pass fails: {failures[0].message}; try another --dtype")
        self.step(StepPlan(step_id=0, free=(0,)))

    def step(self, plan: StepPlan) -> StepResult:
        """``launch`` and ``collect`` in one."""
        return self.collect(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        """Apply the plan's changes and issue its steps, without waiting for the result of an earlier plan.

        Steps read tokens that earlier plans sampled from ``last_token`` on the device. Two exceptions read the device:
        a step with images waits for its copies, and a step whose logits processors count tokens waits until the tokens
        of earlier plans are known. Plans must be collected in the order in which they were launched.
        """
        in_flight = InFlight(plan.step_id, time.perf_counter())
        refused = self._input_batch.apply(plan)
        self._update_sampler(plan, refused)
        in_flight.failures += [_failure(step.slot, refused[step.slot]) for step in plan.steps if step.slot in refused]
        self._attention.copy_tokens(self._kv, self._input_batch.valid_copies(plan))
        if steps := [step for step in plan.steps if step.slot not in refused]:
            self._launch_steps(steps, in_flight)
        self._uncollected.append(in_flight)
        return in_flight

    @torch.inference_mode()
    def collect(self, in_flight: InFlight) -> StepResult:
        """Wait for a launched plan and return its result. The oldest uncollected plan comes first."""
        oldest = self._uncollected.popleft()
        assert oldest is in_flight, "plans are collected in the order in which they were launched"
        chosen = self._record_tokens(in_flight)
        tokens, failures = [], in_flight.failures
        for slot, token_id in zip(in_flight.slots, chosen, strict=True):
            if token_id in FAILURES:
                failures.append(_failure(slot, FAILURES[token_id]))
            else:
                tokens.append((slot, (token_id,)))
        packed = in_flight.logprobs.pack(chosen) if in_flight.logprobs else ()
        return StepResult(
            step_id=in_flight.step_id,
            tokens=tuple(tokens),
            failures=tuple(failures),
            logprobs=tuple((in_flight.slots[row], (entry,)) for row, entry in packed),
            forward_s=time.perf_counter() - in_flight.started_s,
        )

    def _update_sampler(self, plan: StepPlan, refused: Container[int]) -> None:
        if self._sampler is None:
            return
        for slot in plan.free:
            self._sampler.remove_slot(slot)
        for new in plan.new:
            if new.slot not in refused:
                tokens = np.frombuffer(new.token_ids, dtype=np.int64)
                prompt, output = tokens[: new.num_prompt_tokens], tokens[new.num_prompt_tokens :]
                try:
                    self._sampler.add_slot(new.slot, new.sampling, prompt, output)
                except Exception as error:
                    # Only rank 0 knows. The other ranks compute the step as well and get the failure as a token.
                    if is_fatal_device_error(error):
                        raise
                    logger.exception("a logits processor failed")
                    self._sampler.fail_slot(new.slot)

    def _launch_steps(self, steps: Sequence[SequenceStep], in_flight: InFlight) -> None:
        """Issue the steps; what comes of them is noted in ``in_flight``. At least one step."""
        try:
            batch = build_forward_batch(
                self._input_batch, steps, self._last_token, self._vocab_size, self._metadata_builder, self._positions
            )
            hidden = self._model.embed(batch.token_ids)
            unread = self._image_writer.scatter(self._input_batch, batch, hidden)
            if not unread:
                self._sample(batch, self._forward(batch, hidden), in_flight)
        except Exception as error:
            # The engine survives an error of one step, with two exceptions. Several ranks that leave a step at
            # different places would wait for each other in different collectives. And after an error of the device
            # itself, such as an illegal access, every later call of this process fails as well.
            if self._tp.size > 1 or is_fatal_device_error(error):
                raise
            logger.exception("a step with %d sequences failed", len(steps))
            in_flight.failures += [_failure(step.slot, f"internal error: {error}") for step in steps]
            return
        if unread:
            self._launch_without(unread, steps, in_flight)

    def _launch_without(
        self, unread: Sequence[SlotFailure], steps: Sequence[SequenceStep], in_flight: InFlight
    ) -> None:
        """Issue the steps that have all their images; every rank leaves out the same ones."""
        in_flight.failures += unread
        failed = {failure.slot for failure in unread}
        if readable := [step for step in steps if step.slot not in failed]:
            self._launch_steps(readable, in_flight)

    def _forward(self, batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor | None:
        """Logits [S, vocab] of the rows that sample, on rank 0; None on other ranks or when no row samples."""
        hidden = self._executor.forward(hidden, batch.positions, self._kv, batch.metadata, batch.logits_indices)
        return self._model.logits(hidden) if batch.sample_slots else None

    def _sample(self, batch: ForwardBatch, logits: torch.Tensor | None, in_flight: InFlight) -> None:
        """Sample on rank 0; every rank gets the tokens and keeps them as its slots' last ones."""
        if not (slots := batch.sample_slots):
            return
        sequences = [self._input_batch[slot] for slot in slots]
        if self._sampler is not None and logits is not None:
            if any(map(self._sampler.needs_update, slots)):
                for earlier in self._uncollected:
                    self._record_tokens(earlier)
            rows = [
                SampleRow(slot, sequence.sampling, sequence.length)
                for slot, sequence in zip(slots, sequences, strict=True)
            ]
            logprobs = ModelLogprobs(logits, rows)
            tokens = self._sampler.sample(logits, rows)
            logprobs.compute(tokens)
        else:
            logprobs = None
            tokens = torch.empty(len(slots), dtype=torch.int64, device=self._platform.device)
        tokens = self._tp.broadcast(tokens)
        # A row without a token gets token 0, so that a plan already in flight for its slot can still be computed.
        self._last_token.index_copy_(0, torch.tensor(slots, device=tokens.device), tokens.clamp(min=0))
        for sequence in sequences:
            sequence.length += 1
        in_flight.slots, in_flight.sequences = slots, sequences
        in_flight.tokens, in_flight.logprobs = tokens, logprobs

    def _record_tokens(self, in_flight: InFlight) -> Sequence[int]:
        """The plan's tokens or keys of FAILURES. At the first call, waits for them and adds them to their sequences."""
        if in_flight.known_tokens is None:
            in_flight.known_tokens = [] if in_flight.tokens is None else in_flight.tokens.tolist()
            for slot, sequence, token_id in zip(
                in_flight.slots, in_flight.sequences, in_flight.known_tokens, strict=True
            ):
                sequence.tokens.append(max(token_id, 0))
                if self._sampler is not None and token_id not in FAILURES:
                    self._sampler.update(slot, (token_id,))
        return in_flight.known_tokens


def _failure(slot: int, message: str) -> SlotFailure:
    return SlotFailure(slot=slot, media_lost=False, message=message)
