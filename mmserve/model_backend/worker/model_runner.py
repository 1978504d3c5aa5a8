"""Runs step plans on one rank: ``launch`` issues a plan, ``collect`` returns its tokens.

All ranks run the same plans and must call the same collectives. So a problem of one sequence is handled in one of three
ways: all ranks find it by the same check and leave the sequence out; or their hosts tell each other (step_errors); or
rank 0 finds it, and the broadcast of the tokens has a negative number in place of the sequence's token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from mmserve.checkpoint.load import check_tp
from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.faults import NO_FAULTS
from mmserve.messages.step import BlockCopy, SequenceStep, SlotFailure, StepPlan, StepResult
from mmserve.model_backend.attention.interface import AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder
from mmserve.model_backend.loader.registry import positions_of
from mmserve.model_backend.loader.weights import Progress
from mmserve.model_backend.models.interface import DeepStackRows
from mmserve.model_backend.platforms.decode_graphs import Decoded, GraphParts
from mmserve.model_backend.platforms.device import KV_DTYPES
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.worker import kv_cache
from mmserve.model_backend.worker.drafting.draft_model import DraftModel
from mmserve.model_backend.worker.drafting.proposals import Proposals
from mmserve.model_backend.worker.embedding_source import EmbeddingSource
from mmserve.model_backend.worker.forward_batch import ForwardBatch, RowTensors, build_forward_batch
from mmserve.model_backend.worker.image_inputs import ImageEmbeddingWriter
from mmserve.model_backend.worker.in_flight import InFlight
from mmserve.model_backend.worker.input_batch import InputBatch
from mmserve.model_backend.worker.memory_profile import graph_rungs, rank_share
from mmserve.model_backend.worker.next_batch import NextBatch
from mmserve.model_backend.worker.prompt_outputs import PromptResults, compute_prompt_results
from mmserve.model_backend.worker.sampling.make_sampler import make_sampler
from mmserve.model_backend.worker.step_errors import StepErrors
from mmserve.model_backend.worker.step_splitting import StepError, compute_in_parts
from mmserve.model_backend.worker.token_sampling import TokenSampling
from mmserve.model_backend.worker.warm_up import ChunkTime, WarmUp
from mmserve.runtime.startup_timer import StartupTimer


class _Computed(NamedTuple):
    """What a forward pass has computed. ``unread``: it was not run, because these steps miss images."""

    unread: list[SlotFailure]
    logits: torch.Tensor | None = None
    """[S, vocab] of the rows that sample, on rank 0; None on other ranks or when no row samples."""
    decoded: Decoded | None = None
    """By a captured step."""
    prompts: PromptResults | None = None
    """On rank 0, if a sequence asks for something of its prompt."""


class ModelRunner:
    """Owns weights, KV cache and sequences of one rank."""

    def __init__(
        self,
        deployment: Deployment,
        tp: TpGroup,
        embeddings: EmbeddingSource | None,
        platform: Platform,
        progress: Progress,
        startup_timer: StartupTimer | None = None,
    ) -> None:
        startup_timer = startup_timer or StartupTimer()
        spec = deployment.model
        check_tp(spec, tp.size)
        self._tp, self._platform, self._vocab_size = tp, platform, spec.text.vocab_size
        self._attention = platform.attention(AttentionSpec.of(spec.text, tp), KV_DTYPES[deployment.kv_dtype])
        self.block_tokens = self._attention.block_sizes[0]
        quantization = deployment.config.quantization
        self._model = load_decoder(spec, platform, self._attention, tp, quantization, progress)
        draft = None
        if deployment.draft is not None and tp.rank == 0:
            draft = DraftModel(deployment, deployment.draft, platform, progress)
        startup_timer.end("weights")
        platform.choose_ways(deployment.config.kernel_ways)
        startup_timer.end("choice of kernels")
        draft_block_nbytes = 0 if draft is None else draft.block_nbytes(self.block_tokens)
        rungs = graph_rungs(deployment, tp)
        measured = partial(rank_share, deployment, self._model, platform, self._attention, self.block_tokens, rungs)
        self._kv = kv_cache.allocate(
            deployment, tp, platform, self._attention, self.block_tokens, measured, draft_block_nbytes
        )
        self._input_batch = InputBatch(
            deployment.config.max_num_seqs,
            deployment.max_model_len,
            self.num_blocks,
            self.block_tokens,
            self._vocab_size,
            positions_of(spec),
            whole_images=spec.text.attends_whole_images,
        )
        config, max_blocks = deployment.config, self._input_batch.blocks.shape[1]
        self._max_step_s = config.max_step_ms / 1e3
        self._max_chunk_tokens = min(
            config.max_num_batched_tokens, deployment.max_model_len - 1, self.num_blocks * self.block_tokens
        )
        limits = StepLimits(config.max_num_batched_tokens, config.max_num_seqs, max_blocks, self.block_tokens)
        self._metadata_builder = self._attention.builder(limits)
        self._executor = platform.executor(self._model, limits)
        self._progress = progress
        streams = 1 if spec.vision is None else spec.vision.streams
        self._image_writer = ImageEmbeddingWriter(embeddings, spec.text.hidden_size, tp, platform, streams)
        self._errors = StepErrors(tp, platform)
        if draft is not None:
            draft.allocate(self._input_batch, self.num_blocks, limits)
        self._has_draft_model = deployment.draft is not None
        self._proposals = Proposals(draft, tp, self._errors, platform.device)
        choice = platform.sampling() if tp.rank == 0 else None
        sampler = None if choice is None else make_sampler(deployment, platform.transfers(), choice)
        self._transfers = platform.transfers()
        self._sampling = TokenSampling(sampler, tp, self._errors, self._transfers, config.max_num_seqs)
        self._graphs = platform.decode_graphs(
            GraphParts(
                *(self._model, self._attention, self._kv, self._sampling.last_token, choice, tp, rungs),
                vocab_size=self._vocab_size,
                dtype=platform.dtype,
            )
        )
        self._next_batch = NextBatch(self._prepared_batch_of)
        self._done: Sequence[SequenceStep] = ()
        """The steps of the last plan, if all were computed together."""
        self.faults = NO_FAULTS
        self._collected_s = 0.0
        """When the last plan was collected."""

    @property
    def num_blocks(self) -> int:
        return self._kv.shape[1]

    def warm_up(self) -> ChunkTime:
        """Compute once, so that no request pays for first calls, and time a chunk. Raises StartupError."""
        warm_up = WarmUp(self.step, self._tp, self._platform.device, self.block_tokens)
        warm_up.first_steps(with_draft=self._has_draft_model)
        warm_up.graphs(self._graphs.rungs if self._graphs else (), self.num_blocks, self._progress)
        chunk = warm_up.time_chunk(self._max_chunk_tokens, self._max_step_s)
        return chunk._replace(draft=warm_up.time_draft(chunk.num_tokens)) if self._has_draft_model else chunk

    def step(self, plan: StepPlan) -> StepResult:
        """``launch`` and ``collect`` in one."""
        return self.collect(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        """Apply the plan's changes and issue its steps, without waiting for the result of an earlier plan.

        Steps read tokens that earlier plans sampled from ``last_token`` on the device. A step with images waits for its
        copies alone. Two exceptions read the device: a step whose logits processors count tokens, and a plan that
        brings tokens or drafts, wait until the tokens of earlier plans are known. Ranks wait for each other's hosts
        alone. Plans must be collected in the order in which they were launched.
        """
        in_flight = InFlight(plan.step_id, time.perf_counter())
        self._done = ()
        if any(step.token_ids or step.draft or step.num_proposed for step in plan.steps):
            self._sampling.read_tokens()
        refused = self._input_batch.apply(plan)
        self._sampling.update(plan, refused)
        refused |= self._copy_tokens(plan, refused)
        for step in plan.steps:
            if step.slot in refused:
                in_flight.add_failure(step.slot, refused[step.slot])
        if steps := [step for step in plan.steps if step.slot not in refused]:
            self._launch_steps(self._proposals.fill_in(steps, in_flight), in_flight)
            self._proposals.verified(in_flight)
            if not in_flight.sampled:
                in_flight.end = self._transfers.to_host(self._sampling.last_token[:0])
        self._sampling.launched(in_flight)
        return in_flight

    @torch.inference_mode()
    def collect(self, in_flight: InFlight) -> StepResult:
        """Wait for a launched plan and return its result. The oldest uncollected plan comes first."""
        in_flight.wait()
        self._sampling.collect(in_flight)
        now_s = time.perf_counter()
        # A plan that was launched ahead began when the one before it was done.
        in_flight.started_s = max(in_flight.started_s, self._collected_s)
        self._collected_s = now_s
        return in_flight.result(now_s)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Work for the next step that need not wait for its plan."""
        self._sampling.prepare()
        if not self._transfers.late:  # else the next plan may be launched already
            self._errors.catch(self._next_batch.prepare, self._done)

    def _copy_tokens(self, plan: StepPlan, refused: Mapping[int, str]) -> dict[int, str]:
        """Copy KV blocks. Returns slot -> message for the steps whose copies fail on some rank."""
        copies = self._input_batch.valid_copies(plan)
        self._proposals.apply(plan, copies, refused)
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
        failed, errors = compute_in_parts(steps, partial(self._attempt, in_flight), self._input_batch.cut)
        for slot, message in failed.items():
            in_flight.add_failure(slot, message)
        in_flight.in_parts = bool(errors)
        self._done = () if errors else steps
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
        sequences = [self._input_batch[slot] for slot in batch.sample_slots]
        error = None
        if sequences:
            error = self._sampling.sample(
                batch.sample_slots, sequences, batch.drafts, computed.logits, in_flight, computed.decoded
            )
        if computed.prompts is not None and error is None:
            in_flight.prompts.append(computed.prompts)
        return error

    def _build(self, steps: Sequence[SequenceStep]) -> ForwardBatch:
        self.faults.pass_through()
        return self._next_batch.take(steps) or self._batch_of(steps)

    def _batch_of(self, steps: Sequence[SequenceStep]) -> ForwardBatch:
        makers = self._metadata_builder, self._transfers, self._sampling.draws
        return build_forward_batch(self._input_batch, steps, self._vocab_size, *makers)

    def _prepared_batch_of(self, steps: Sequence[SequenceStep]) -> ForwardBatch:
        batch = self._batch_of(steps)
        if self._graphs is not None and batch.decodes is not None:
            self._graphs.prepare(batch.decodes, batch.metadata)
        return batch

    def _compute(self, batch: ForwardBatch) -> _Computed:
        """The forward pass, or the steps that every rank must leave out because images could not be read."""
        if (computed := self._replay(batch)) is not None:
            return computed
        rows = batch.on_device(self._sampling.last_token, self._transfers)
        hidden = self._model.embed(rows.token_ids)
        unread, deepstack = self._image_writer.scatter(self._input_batch, batch, hidden)
        return _Computed(unread) if unread else self._forward(batch, rows, hidden, deepstack)

    def _replay(self, batch: ForwardBatch) -> _Computed | None:
        """A captured step, if there is one for this batch."""
        if self._graphs is None or (rows := batch.decodes) is None:
            return None
        if (decoded := self._graphs.decode(rows, batch.metadata)) is None:
            return None
        return _Computed([], decoded.logits, decoded)

    def _forward(
        self, batch: ForwardBatch, rows: RowTensors, hidden: torch.Tensor, deepstack: DeepStackRows | None
    ) -> _Computed:
        outputs = self._executor.forward(
            hidden, rows.positions, self._kv, batch.metadata, rows.logits_indices, deepstack
        )
        prompts = None
        if (wanted := batch.prompt_outputs) is not None:
            prompts = compute_prompt_results(
                self._model, outputs, wanted, self._vocab_size, self._tp.rank, self._transfers
            )
            outputs = outputs[wanted.sampling]
        return _Computed([], self._model.logits(outputs) if batch.sample_slots else None, prompts=prompts)
