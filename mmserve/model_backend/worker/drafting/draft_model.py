"""Computes the draft model of a rank: the tokens that follow those of a sequence, as this model would continue.

A token is drawn with the sequence's temperature and cuts, and with the random number of its position, which the sampler
uses for the same position too. So the more the two models agree, the more drafts are right, at any temperature; with
equal models all are. Penalties, bans and grammars do not change drafts. Pictures are unknown to the draft model, so the
router asks for no drafts of sequences with pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.resolved.deployment import Deployment
from mmserve.messages.step import BlockCopy, SequenceStep, StepPlan
from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder
from mmserve.model_backend.loader.weights import Progress
from mmserve.model_backend.platforms.device import KV_DTYPES
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.worker import kv_cache
from mmserve.model_backend.worker.drafting.draft_coverage import DraftCoverage
from mmserve.model_backend.worker.input_batch import InputBatch, Int64s
from mmserve.model_backend.worker.sampling.sampler import draw_of
from mmserve.runtime.errors import StartupError

MAX_ROWS = 256
"""Tokens that the first pass of a step computes at most. A sequence whose tokens are many gets its first draft some
steps later, so that none of these becomes much longer."""


class _Chunk(NamedTuple):
    """Consecutive tokens of a slot that one pass computes. ``samples``: the next token is wanted."""

    slot: int
    start: int
    token_ids: Sequence[int]
    samples: bool


class DraftModel:
    """Owns the weights and the KV cache of the draft model. ``allocate`` comes before all other calls."""

    def __init__(self, deployment: Deployment, model: ModelSpec, platform: Platform, progress: Progress) -> None:
        alone, quantization = TpGroup(), deployment.config.quantization
        self._vocab_size = min(model.text.vocab_size, deployment.model.text.vocab_size)
        self._num_layers, self._kv_dtype = model.text.num_layers, KV_DTYPES[deployment.kv_dtype]
        self._attention = platform.attention(AttentionSpec.of(model.text, alone), self._kv_dtype)
        self._platform, self._sampling = platform, platform.sampling()
        self._model = load_decoder(
            model, platform, self._attention, alone, "none" if model.quantization else quantization, progress
        )

    def block_nbytes(self, block_tokens: int) -> int:
        """Of one KV block, in all layers. Raises StartupError if the model cannot use blocks of so many tokens."""
        if block_tokens not in self._attention.block_sizes:
            raise StartupError(
                f"--speculative-model: its attention cannot read KV blocks of {block_tokens} tokens, which the served "
                "model needs; choose another model"
            )
        return kv_cache.block_nbytes(self._num_layers, self._kv_dtype, self._attention, block_tokens)

    def allocate(self, input_batch: InputBatch, num_blocks: int, limits: StepLimits) -> None:
        """Allocates the KV cache, for the sequences of ``input_batch``."""
        shape = (self._num_layers, *self._attention.kv_shape(num_blocks, limits.block_tokens))
        self._kv = self._platform.allocate_kv_cache(shape, self._kv_dtype)
        self._input_batch = input_batch
        self._coverage = DraftCoverage(num_blocks, limits.block_tokens)
        self._block_tokens = limits.block_tokens
        self._max_rows = min(MAX_ROWS, limits.max_tokens)
        self._metadata_builder = self._attention.builder(limits)
        self._executor = self._platform.executor(self._model, limits)

    def apply(self, plan: StepPlan, copies: Sequence[BlockCopy], refused: Mapping[int, str]) -> None:
        """The input batch has applied the plan, but for slots in ``refused``. Copies KV blocks."""
        for step in plan.steps:
            if step.new_blocks and step.slot not in refused:
                first_block = self._input_batch[step.slot].num_blocks - len(step.new_blocks)
                self._coverage.enter(step.new_blocks, first_block * self._block_tokens, step.start)
        if not copies:
            return
        try:
            self._attention.copy_tokens(self._kv, copies)
        except Exception:
            # Raised again, whatever it is: before that, the draft's cache forgets the blocks that were not copied.
            self._coverage.clear([copy.target for copy in copies])
            raise
        self._coverage.copy(copies)

    def propose(self, steps: Sequence[SequenceStep]) -> tuple[dict[int, list[int]], int]:
        """(slot -> up to ``num_proposed`` tokens after those of its sequence, rows of the first pass).

        All tokens of the sequences are known. No tokens for a slot whose own are not all computed yet.
        """
        chunks = list(self._chunks(steps))
        sampled = self._forward(chunks)
        drafts = {slot: [token_id] for slot, token_id in sampled.items()}
        wanted = {step.slot: step.num_proposed for step in steps}
        while following := [self._next(slot, drafts[slot]) for slot in sampled if wanted[slot] > len(drafts[slot])]:
            sampled = self._forward(following)
            for slot, token_id in sampled.items():
                drafts[slot].append(token_id)
        return drafts, sum(len(chunk.token_ids) for chunk in chunks)

    def num_missing(self, slot: int) -> int:
        """Tokens of the slot's sequence that are not computed yet."""
        return max(0, len(self._input_batch[slot].tokens) - self._coverage.num_tokens(self._blocks(slot)))

    def truncate(self, slot: int) -> None:
        """The slot's draft was verified, or is not used: what was computed of other tokens than its own is void."""
        known = self._input_batch[slot]
        self._coverage.truncate(self._blocks(slot), len(known.tokens) - 1)

    def _blocks(self, slot: int) -> Int64s:
        return self._input_batch.blocks[slot, : self._input_batch[slot].num_blocks]

    def _chunks(self, steps: Sequence[SequenceStep]) -> Iterator[_Chunk]:
        """What was not computed yet of the steps' sequences, as far as one pass goes; the last token at least."""
        room = self._max_rows
        for step in steps:
            tokens = self._input_batch[step.slot].tokens
            start = min(self._coverage.num_tokens(self._blocks(step.slot)), len(tokens) - 1)
            if token_ids := tokens[start : start + room]:
                yield _Chunk(step.slot, start, token_ids, start + len(token_ids) == len(tokens))
                room -= len(token_ids)

    def _next(self, slot: int, draft: Sequence[int]) -> _Chunk:
        """The last token of a draft."""
        return _Chunk(slot, len(self._input_batch[slot].tokens) + len(draft) - 1, draft[-1:], True)

    def _forward(self, chunks: Sequence[_Chunk]) -> dict[int, int]:
        """One pass over chunks, at least one. Slot -> the token that follows, if it is wanted and the output finite."""
        ordered = sorted(chunks, key=lambda chunk: (len(chunk.token_ids) > 1, -chunk.start))
        slots, starts, counts = (
            np.array(values)
            for values in zip(*((chunk.slot, chunk.start, len(chunk.token_ids)) for chunk in ordered), strict=True)
        )
        ends = counts.cumsum()
        positions = np.arange(ends[-1]) + np.repeat(starts + counts - ends, counts)
        ids = np.concatenate([np.array(chunk.token_ids, dtype=np.int64) for chunk in ordered])
        mapping = self._input_batch.slot_mapping(np.repeat(slots, counts), positions)
        sampling = [index for index, chunk in enumerate(ordered) if chunk.samples]
        device = self._platform.device
        token_ids, rows, wanted = (
            torch.from_numpy(values).to(device)
            for values in (np.where(ids < self._vocab_size, ids, 0), positions[None], ends[sampling] - 1)
        )
        step = AttentionInput(slots, starts, counts, self._input_batch.blocks, mapping)
        metadata = self._metadata_builder.build(step)
        outputs = self._executor.forward(self._model.embed(token_ids), rows, self._kv, metadata, wanted)
        for chunk in ordered:
            self._coverage.cover(self._blocks(chunk.slot), chunk.start, chunk.start + len(chunk.token_ids))
        return self._sample([ordered[index] for index in sampling], self._model.logits(outputs)) if sampling else {}

    def _sample(self, chunks: Sequence[_Chunk], logits: torch.Tensor | None) -> dict[int, int]:
        assert logits is not None, "one rank has all logits"
        draws = [
            draw_of(self._input_batch[chunk.slot].sampling, chunk.start + len(chunk.token_ids)) for chunk in chunks
        ]
        logits = logits.float()[:, : self._vocab_size].contiguous()
        chosen = self._sampling.choose(logits, draws, may_ban=False).tolist()
        return {chunk.slot: token for chunk, token in zip(chunks, chosen, strict=True) if token >= 0}
