"""Runs step plans on one rank: ``launch`` issues a plan, ``collect`` returns its tokens.

All ranks run the same plans and must call the same collectives. So a problem of one sequence is handled in one of three
ways: all ranks find it by the same check and leave the sequence out; or the ranks agree on it (step_errors); or rank 0
finds it, and the broadcast of the tokens has a negative number in place of the sequence's token.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Container, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from mmserve.checkpoint.load import check_tp
from mmserve.config.deployment import Deployment
from mmserve.ipc.arena import Arena
from mmserve.ipc.faults import NO_FAULTS
from mmserve.messages.step import BlockCopy, SequenceStep, SlotFailure, StepPlan, StepResult
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
from mmserve.model_backend.worker.in_flight import InFlight, SampledRows
from mmserve.model_backend.worker.input_batch import InputBatch, Slot
from mmserve.model_backend.worker.prompt_outputs import PromptResults, compute_prompt_results
from mmserve.model_backend.worker.sampling.grammar_compiler import GrammarCompiler
from mmserve.model_backend.worker.sampling.grammar_masks import GrammarMasks
from mmserve.model_backend.worker.sampling.logprobs import ModelLogprobs
from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow
from mmserve.model_backend.worker.step_errors import StepErrors
from mmserve.model_backend.worker.step_splitting import StepError, compute_in_parts
from mmserve.model_backend.worker.warm_up import ChunkTime, WarmUp
from mmserve.runtime.startup_timer import StartupTimer

logger = logging.getLogger(__name__)


class _Computed(NamedTuple):
    """What a forward pass has computed. ``unread``: it was not run, because these steps miss images."""

    unread: list[SlotFailure]
    logits: torch.Tensor | None = None
    """[S, vocab] of the rows that sample, on rank 0; None on other ranks or when no row samples."""
    prompts: PromptResults | None = None
    """On rank 0, if a sequence asks for something of its prompt."""


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
        quantization = deployment.config.quantization
        self._model = load_decoder(spec, platform, self._attention, tp, quantization, progress)
        startup_timer.end("weights")
        self._kv = kv_cache.allocate(deployment, tp, platform, self._attention, self.block_tokens)
        self._input_batch = InputBatch(
            deployment.config.max_num_seqs,
            deployment.max_model_len,
            self.num_blocks,
            self.block_tokens,
            self._vocab_size,
        )
        config, max_blocks = deployment.config, self._input_batch.blocks.shape[1]
        self._max_step_s = config.max_step_ms / 1e3
        self._max_chunk_tokens = min(
            config.max_num_batched_tokens, deployment.max_model_len - 1, self.num_blocks * self.block_tokens
        )
        limits = StepLimits(config.max_num_batched_tokens, config.max_num_seqs, max_blocks, self.block_tokens)
        self._metadata_builder = self._attention.builder(limits)
        self._executor = platform.executor(self._model, limits)
        self._positions = family_of(spec.family).positions
        self._image_writer = ImageEmbeddingWriter(arena, spec.text.hidden_size, tp, platform)
        self._sampler = _sampler(deployment, platform) if tp.rank == 0 else None
        self._last_token = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=platform.device)
        """By slot: the token that it sampled last. Decode rows read it, so no id has to come from the host."""
        self._uncollected: deque[InFlight] = deque()
        self._errors = StepErrors(tp, platform)
        self.faults = NO_FAULTS

    @property
    def num_blocks(self) -> int:
        return self._kv.shape[1]

    def warm_up(self) -> ChunkTime:
        """Compute once, so that no request pays for first calls, and time a chunk. Raises StartupError."""
        warm_up = WarmUp(self.step, self._tp, self._platform.device, self.block_tokens)
        warm_up.first_steps()
        return warm_up.time_chunk(self._max_chunk_tokens, self._max_step_s)

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
        refused |= self._copy_tokens(plan)
        for step in plan.steps:
            if step.slot in refused:
                in_flight.add_failure(step.slot, refused[step.slot])
        if steps := [step for step in plan.steps if step.slot not in refused]:
            self._launch_steps(steps, in_flight)
        self._uncollected.append(in_flight)
        return in_flight

    @torch.inference_mode()
    def collect(self, in_flight: InFlight) -> StepResult:
        """Wait for a launched plan and return its result. The oldest uncollected plan comes first."""
        oldest = self._uncollected.popleft()
        assert oldest is in_flight, "plans are collected in the order in which they were launched"
        self._record_tokens(in_flight)
        return in_flight.result(time.perf_counter())

    def prepare(self) -> None:
        """Work for the next step that need not wait for its plan."""
        if self._sampler is not None:
            self._sampler.prepare()

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

    def _copy_tokens(self, plan: StepPlan) -> dict[int, str]:
        """Copy KV blocks. Returns slot -> message for the steps whose copies fail on some rank."""
        copies = self._input_batch.valid_copies(plan)
        if not copies:
            return {}
        errors = self._errors.agree([self._copy(copies)]) * len(copies)
        if any(errors) and {copy.source for copy in copies}.isdisjoint([copy.target for copy in copies]):
            # No copy overwrites what another one reads, so they may be tried again one by one.
            errors = self._errors.agree([self._copy([copy]) for copy in copies])
        failed = {copy.target: error.message for copy, error in zip(copies, errors, strict=True) if error}
        return {step.slot: failed[block] for step in plan.steps for block in step.new_blocks if block in failed}

    def _copy(self, copies: Sequence[BlockCopy]) -> StepError | None:
        return self._errors.catch(self._attention.copy_tokens, self._kv, copies)[1]

    def _launch_steps(self, steps: Sequence[SequenceStep], in_flight: InFlight) -> None:
        """Issue the steps, if need be in parts; what comes of them is noted in ``in_flight``. At least one step."""
        # Decoding has no errors of its own before the first collective that would be worth a collective in every step.
        in_flight.agrees = self._tp.size > 1 and any(step.num_tokens > 1 for step in steps)
        failed, errors = compute_in_parts(steps, partial(self._attempt, in_flight))
        for slot, message in failed.items():
            in_flight.add_failure(slot, message)
        in_flight.in_parts = bool(errors)
        in_flight.out_of_memory = any(error.out_of_memory for error in errors)

    def _attempt(self, in_flight: InFlight, steps: Sequence[SequenceStep]) -> StepError | None:
        """Issue the steps together, with one forward pass. All ranks return the same error or none.

        With several ranks, raises errors of the forward pass, and in plans without prompts of its preparation: the
        others may wait in a collective that this rank never enters, and only a restart of the engine ends their wait.
        """
        if self._tp.size == 1 or in_flight.agrees:
            built, error = self._errors.catch(self._build, steps)
            (error,) = self._errors.agree([error])
            if built is None or error:
                return error
            batch = built
        else:
            batch = self._build(steps)
        if self._tp.size > 1:
            computed = self._compute(batch)
        else:
            result, error = self._errors.catch(self._compute, batch)
            if result is None:
                return error
            computed = result
        if computed.unread:
            in_flight.add_failures(computed.unread)
            failed = {failure.slot for failure in computed.unread}
            readable = [step for step in steps if step.slot not in failed]
            return self._attempt(in_flight, readable) if readable else None
        error = self._sample(batch, computed.logits, in_flight)
        if computed.prompts is not None and error is None:
            in_flight.prompts.append(computed.prompts)
        return error

    def _build(self, steps: Sequence[SequenceStep]) -> ForwardBatch:
        self.faults.pass_through()
        return build_forward_batch(
            self._input_batch, steps, self._last_token, self._vocab_size, self._metadata_builder, self._positions
        )

    def _compute(self, batch: ForwardBatch) -> _Computed:
        """The forward pass, or the steps that every rank must leave out because images could not be read."""
        hidden = self._model.embed(batch.token_ids)
        if unread := self._image_writer.scatter(self._input_batch, batch, hidden):
            return _Computed(unread)
        return self._forward(batch, hidden)

    def _forward(self, batch: ForwardBatch, hidden: torch.Tensor) -> _Computed:
        outputs = self._executor.forward(hidden, batch.positions, self._kv, batch.metadata, batch.logits_indices)
        prompts = None
        if (wanted := batch.prompt_outputs) is not None:
            prompts = compute_prompt_results(self._model, outputs, wanted, self._vocab_size, self._tp.rank)
            outputs = outputs[wanted.sampling]
        return _Computed([], self._model.logits(outputs) if batch.sample_slots else None, prompts)

    def _sample(self, batch: ForwardBatch, logits: torch.Tensor | None, in_flight: InFlight) -> StepError | None:
        """Sample on rank 0; every rank gets the tokens and keeps them as its slots' last ones, or gets the error."""
        if not (slots := batch.sample_slots):
            return None
        sequences = [self._input_batch[slot] for slot in slots]
        error, logprobs = None, None
        if self._sampler is not None and logits is not None:
            drawn, error = self._errors.catch(self._draw, self._sampler, logits, slots, sequences)
            tokens, logprobs = drawn or (self._errors.tokens_for(error, len(slots)), None)
        else:
            tokens = torch.empty(len(slots), dtype=torch.int64, device=self._platform.device)
        tokens = self._tp.broadcast(tokens)
        if error := self._errors.in_tokens(error, tokens):
            return error
        # A row without a token gets token 0, so that a plan already in flight for its slot can still be computed.
        self._last_token.index_copy_(0, torch.tensor(slots, device=tokens.device), tokens.clamp(min=0))
        for sequence in sequences:
            sequence.length += 1
        in_flight.sampled.append(SampledRows(slots, sequences, tokens, logprobs))
        return None

    def _draw(
        self, sampler: Sampler, logits: torch.Tensor, slots: Sequence[int], sequences: Sequence[Slot]
    ) -> tuple[torch.Tensor, ModelLogprobs]:
        """What ``Sampler.sample`` returns, and the log-probabilities of the tokens."""
        if any(map(sampler.needs_update, slots)):
            for earlier in self._uncollected:
                self._record_tokens(earlier)
        rows = [
            SampleRow(slot, sequence.sampling, sequence.length) for slot, sequence in zip(slots, sequences, strict=True)
        ]
        logprobs = ModelLogprobs(logits, rows)
        tokens = sampler.sample(logits, rows)
        logprobs.compute(tokens)
        return tokens, logprobs

    def _record_tokens(self, in_flight: InFlight) -> None:
        """At the first call, wait for the plan's tokens and add them to their sequences."""
        for rows in in_flight.sampled:
            if rows.known_tokens is None:
                rows.known_tokens = rows.tokens.tolist()
                for slot, sequence, token_id in zip(rows.slots, rows.sequences, rows.known_tokens, strict=True):
                    sequence.tokens.append(max(token_id, 0))
                    if self._sampler is not None and token_id >= 0:
                        self._update_processors(self._sampler, slot, token_id)

    @staticmethod
    def _update_processors(sampler: Sampler, slot: int, token_id: int) -> None:
        try:
            sampler.update(slot, (token_id,))
        except Exception as error:  # the boundary of one sequence, as in _update_sampler
            if is_fatal_device_error(error):
                raise
            logger.exception("a logits processor failed")
            sampler.fail_slot(slot)


def _sampler(deployment: Deployment, platform: Platform) -> Sampler:
    vocab_size, sampling = deployment.model.text.vocab_size, platform.sampling()
    grammars = GrammarMasks(GrammarCompiler(deployment.model), vocab_size, sampling, deployment.cpu_threads)
    return Sampler(vocab_size, platform.device, sampling, grammars)
