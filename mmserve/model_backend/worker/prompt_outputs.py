"""What a step returns of prompts: log-probabilities of their tokens, and embeddings.

A model computes the last layer only for rows whose outputs are wanted. ``select_outputs`` adds those of prompts to the
rows that sample, ``compute_prompt_results`` makes numbers of them. Steps without such requests have neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmserve.messages.logprobs import NO_TOKEN
from mmserve.messages.step import SequenceStep
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.transfers import HostCopy, Transfers
from mmserve.model_backend.worker.input_batch import InputBatch, Int64s, Slot
from mmserve.model_backend.worker.sampling.logprobs import most_likely

_PIECE_LOGITS = 1 << 23
"""Logits of prompt tokens computed at once, 32 MiB in float32: a chunk of thousands of tokens would need gigabytes."""
_PAIR = np.dtype([("id", "<i4"), ("logprob", "<f4")])
NOT_FINITE_PROMPT = "the model's output for the prompt is not finite"


@dataclass(frozen=True)
class ScoredChunk:
    """The part of a prompt whose log-probabilities a step returns."""

    slot: int
    num_rows: int
    """Tokens of the prompt, image tokens included."""
    text_rows: Int64s
    """[K] ascending: which of them are text."""
    token_ids: Int64s
    """[K]: the text tokens."""
    batch_rows: Int64s
    """[K]: the rows of the forward pass before these tokens, whose outputs predict them."""
    top: int
    """Most likely tokens to report with each."""


@dataclass(frozen=True)
class PromptOutputs:
    """Which of a forward pass's outputs belong to what. Indices are int64 tensors on the device."""

    chunks: tuple[ScoredChunk, ...]
    scored: torch.Tensor
    """Outputs that predict the chunks' text tokens, in their order."""
    pooled_slots: tuple[int, ...]
    pooled: torch.Tensor
    """Outputs of the last tokens of these slots' prompts."""
    sampling: torch.Tensor
    """Outputs from which tokens are sampled."""


def select_outputs(
    input_batch: InputBatch,
    steps: Sequence[SequenceStep],
    first_rows: Int64s,
    sampling_rows: Int64s,
    vocab_size: int,
    transfers: Transfers,
) -> tuple[Int64s, PromptOutputs | None]:
    """Rows of the forward pass whose outputs are wanted, ascending, and what they are wanted for besides sampling."""
    if not input_batch.asking:
        return sampling_rows, None
    chunks, pooled_slots, pooled_rows = [], [], []
    for step, first_row in zip(steps, first_rows.tolist(), strict=True):
        if step.slot not in input_batch.asking:
            continue
        slot = input_batch[step.slot]
        if (chunk := _scored_chunk(slot, step, first_row, vocab_size)) is not None:
            chunks.append(chunk)
        if slot.pooling and step.start + step.num_tokens == slot.num_prompt_tokens:
            pooled_slots.append(step.slot)
            pooled_rows.append(first_row + step.num_tokens - 1)
    if not chunks and not pooled_slots:
        return sampling_rows, None
    scored_rows = np.concatenate([_NO_ROWS, *(chunk.batch_rows for chunk in chunks)])
    rows = np.unique(np.concatenate((sampling_rows, scored_rows, pooled_rows)).astype(np.int64))
    scored, pooled, sampling = (
        transfers.to_device(torch.from_numpy(np.searchsorted(rows, wanted)))
        for wanted in (scored_rows, np.array(pooled_rows, dtype=np.int64), sampling_rows)
    )
    return rows, PromptOutputs(tuple(chunks), scored, tuple(pooled_slots), pooled, sampling)


def _scored_chunk(slot: Slot, step: SequenceStep, first_row: int, vocab_size: int) -> ScoredChunk | None:
    """Row r of a prompt's log-probabilities belongs to token r + 1 and comes from the output of token r."""
    top = slot.sampling.prompt_logprobs
    first = max(step.start, slot.num_prompt_logprobs)
    num_rows = min(step.start + step.num_tokens, slot.num_prompt_tokens - 1) - first
    if top is None or num_rows <= 0:
        return None
    following = slot.chunk(first + 1, num_rows)
    text_rows = np.flatnonzero((following >= 0) & (following < vocab_size))
    batch_rows = text_rows + (first_row + first - step.start)
    return ScoredChunk(step.slot, num_rows, text_rows, following[text_rows], batch_rows, top)


@dataclass(frozen=True)
class PromptResults:
    """On rank 0: on their way to the host."""

    chunks: tuple[ScoredChunk, ...]
    own: HostCopy
    """float32 [K of all chunks]: log-probability of each text token."""
    likely: tuple[HostCopy, HostCopy] | None
    """Ids and log-probabilities [K, n] of the most likely tokens, if any chunk reports some."""
    pooled_slots: tuple[int, ...]
    pooled: HostCopy
    """float32 [P, hidden]."""

    def wait(self) -> None:
        """Wait for the copies. Any thread may call it."""
        for copy in (self.own, self.pooled, *(self.likely or ())):
            copy.wait()

    def rows(self) -> Iterator[tuple[int, bytes | None]]:
        """(slot, packed rows of its chunk; None if they are not finite). Waits for the copies."""
        own = self.own.wait().numpy()
        ids, values = (None, None) if self.likely is None else _sorted(*(copy.wait() for copy in self.likely))
        end = 0
        for chunk in self.chunks:
            start, end = end, end + len(chunk.text_rows)
            rows = np.zeros((chunk.num_rows, 1 + chunk.top), dtype=_PAIR)
            rows["id"] = NO_TOKEN
            rows["id"][chunk.text_rows, 0] = chunk.token_ids
            rows["logprob"][chunk.text_rows, 0] = own[start:end]
            if ids is not None and values is not None and chunk.top:
                columns = slice(1, 1 + min(chunk.top, ids.shape[1]))
                rows["id"][chunk.text_rows, columns] = ids[start:end, : chunk.top]
                rows["logprob"][chunk.text_rows, columns] = values[start:end, : chunk.top]
            yield chunk.slot, rows.tobytes() if np.isfinite(rows["logprob"]).all() else None

    def embeddings(self) -> Iterator[tuple[int, bytes | None]]:
        """(slot, float32 [hidden]; None if it is not finite). Waits for the copy."""
        for slot, values in zip(self.pooled_slots, self.pooled.wait().numpy(), strict=True):
            yield slot, values.tobytes() if np.isfinite(values).all() else None


def compute_prompt_results(
    model: DecoderModel,
    outputs: torch.Tensor,
    wanted: PromptOutputs,
    vocab_size: int,
    rank: int,
    transfers: Transfers,
) -> PromptResults | None:
    """From the outputs [S, hidden] of a forward pass; None on other ranks than 0. All ranks call it: logits are a
    collective."""
    reports_likely = any(chunk.top for chunk in wanted.chunks)
    targets = torch.from_numpy(np.concatenate([_NO_ROWS, *(chunk.token_ids for chunk in wanted.chunks)]))
    targets = transfers.to_device(targets)
    own, likely_ids, likely_values = [], [], []
    size = max(1, _PIECE_LOGITS // vocab_size)
    for first in range(0, len(targets), size):
        piece = slice(first, first + size)
        logits = model.logits(outputs[wanted.scored[piece]])
        if logits is None:
            continue
        logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        own.append(logprobs.gather(1, targets[piece, None]).squeeze(1))
        if reports_likely:
            ids, values = most_likely(logprobs)
            likely_ids.append(ids)
            likely_values.append(values)
    if rank:
        return None
    pooled = model.normalized(outputs[wanted.pooled]).float()
    likely = None
    if likely_ids:
        likely = transfers.to_host(torch.cat(likely_ids)), transfers.to_host(torch.cat(likely_values))
    all_own = torch.cat(own) if own else pooled.new_empty(0)
    return PromptResults(
        wanted.chunks, transfers.to_host(all_own), likely, wanted.pooled_slots, transfers.to_host(pooled)
    )


def _sorted(
    ids: torch.Tensor, values: torch.Tensor
) -> tuple[Int64s, np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    """Most likely first; equal ones by id, as with sampled tokens."""
    ids_, values_ = ids.numpy(), values.numpy()
    order = np.lexsort((ids_, -values_), axis=-1)
    return np.take_along_axis(ids_, order, axis=-1), np.take_along_axis(values_, order, axis=-1)


_NO_ROWS: Int64s = np.zeros(0, dtype=np.int64)
