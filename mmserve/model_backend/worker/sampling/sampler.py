"""Logits -> token ids for a batch of sequences, each by its own parameters. Runs on rank 0.

A row's token depends only on its logits, parameters, seed and position. The draw inverts the cumulative distribution
in vocabulary order, and top-k and top-p cut at a value, so the order of equal logits and the other rows change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.worker.sampling.counter_random import uniform
from mmserve.model_backend.worker.sampling.logits_processors import Int64s, LogitsProcessor, make_processors

NOT_FINITE, NO_TOKEN_ALLOWED, PROCESSOR_FAILED = -1, -2, -3
"""In place of a token id, all of which are 0 or more: the row has no token."""
FAILURES = {
    NOT_FINITE: "the model's output is not finite",
    NO_TOKEN_ALLOWED: "no token is allowed: the request's parameters ban all of them",
    PROCESSOR_FAILED: "internal error: a logits processor failed",
}
_GREEDY_BELOW = 1e-5
_TOP_P_HEAD = 256
"""Most likely tokens looked at first for top-p; the whole row is sorted only when they do not cover it."""


class SampleRow(NamedTuple):
    """One sequence about to get a token."""

    slot: int
    sampling: SamplingParams
    position: int
    """Index in the sequence of the token to come."""


class Sampler:
    """Samples tokens and owns the logits processors, whose state it keeps for each slot."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._processors = make_processors(vocab_size, device)
        self._to_update: dict[int, list[LogitsProcessor]] = {}
        self._failed: set[int] = set()
        """Slots that get no token, because a processor failed in ``add_slot``."""

    def add_slot(self, slot: int, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> None:
        """A sequence enters the slot; what an earlier one left there is forgotten."""
        self.remove_slot(slot)
        if updated := [each for each in self._processors if each.add_slot(slot, sampling, prompt, output)]:
            self._to_update[slot] = updated

    def fail_slot(self, slot: int) -> None:
        """``add_slot`` has raised: the slot gets PROCESSOR_FAILED in place of every token, until it is removed."""
        self.remove_slot(slot)
        self._failed.add(slot)

    def remove_slot(self, slot: int) -> None:
        """The slot's sequence has left."""
        self._to_update.pop(slot, None)
        self._failed.discard(slot)
        for processor in self._processors:
            processor.remove_slot(slot)

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        """The slot's sequence got these tokens."""
        for processor in self._to_update.get(slot, ()):
            processor.update(slot, token_ids)

    def needs_update(self, slot: int) -> bool:
        """True if ``update`` must be called with the slot's last tokens before it is sampled again."""
        return slot in self._to_update

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        """[S, vocab] and their rows -> int64 [S]: token ids or keys of FAILURES. May change ``logits``."""
        logits = logits.float()
        finite = torch.isfinite(logits.sum(dim=-1))
        slots = [row.slot for row in rows]
        banned = [processor.apply(logits, slots) for processor in self._processors]
        chosen = _argmax(logits)
        none_allowed = logits.gather(1, chosen[:, None]).squeeze(1) == float("-inf") if any(banned) else None
        random = [index for index, row in enumerate(rows) if row.sampling.temperature >= _GREEDY_BELOW]
        if random:
            chosen[random] = _draw(logits[random], [rows[index] for index in random])
        if none_allowed is not None:
            chosen.masked_fill_(none_allowed, NO_TOKEN_ALLOWED)
        chosen.masked_fill_(~finite, NOT_FINITE)
        if self._failed:
            chosen[[index for index, slot in enumerate(slots) if slot in self._failed]] = PROCESSOR_FAILED
        return chosen


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    if logits.device.type == "cpu":  # numpy's argmax is vectorised: ten times as fast over a large vocabulary
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _draw(logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
    """int64 [R] from float [R, vocab]: temperature, top-k, softmax, top-p, min-p, inverse CDF."""
    params = [row.sampling for row in rows]
    logits = logits / _column([p.temperature for p in params], logits)
    if any(p.top_k > 0 for p in params):
        logits = logits.masked_fill_(logits < _kth_largest(logits, [p.top_k for p in params]), float("-inf"))
    probs = torch.softmax(logits, dim=-1)
    if any(p.top_p < 1 for p in params):
        probs = probs.masked_fill_(probs < _nucleus_floor(probs, [p.top_p for p in params]), 0)
    if any(p.min_p > 0 for p in params):
        floor = probs.amax(dim=-1, keepdim=True) * _column([p.min_p for p in params], probs)
        probs = probs.masked_fill_(probs < floor, 0)
    cdf = probs.cumsum(dim=-1, dtype=torch.float64)
    target = cdf[:, -1:] * _column([uniform(row.sampling.seed, row.position) for row in rows], cdf)
    return torch.searchsorted(cdf, target, right=True).squeeze(1).clamp_(max=cdf.shape[1] - 1)


def _kth_largest(logits: torch.Tensor, top_k: list[int]) -> torch.Tensor:
    """[R, 1]: each row's k-th largest value; -inf where k is 0 (off)."""
    vocab_size = logits.shape[1]
    ks = [min(max(k, 0), vocab_size) for k in top_k]
    largest = logits.topk(max(ks), dim=-1).values
    floor = largest.gather(1, torch.tensor([[max(k, 1) - 1] for k in ks], device=logits.device))
    return floor.masked_fill_(torch.tensor([[k == 0] for k in ks], device=logits.device), float("-inf"))


def _nucleus_floor(probs: torch.Tensor, top_p: list[float]) -> torch.Tensor:
    """[R, 1]: probability of the token that completes each row's nucleus (Holtzman et al. 2020); 0 where p is 1."""
    head = probs.topk(min(_TOP_P_HEAD, probs.shape[1]), dim=-1).values
    floor, covered = _crossing(head, _column(top_p, probs))
    open_rows = [row for row, done in enumerate(covered.tolist()) if not done and top_p[row] < 1]
    if open_rows:
        whole = probs[open_rows].sort(dim=-1, descending=True).values
        floor[open_rows], _ = _crossing(whole, _column([top_p[row] for row in open_rows], probs))
    return floor.masked_fill_(torch.tensor([[p >= 1] for p in top_p], device=probs.device), 0)


def _crossing(descending: torch.Tensor, top_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, 1] value at which each row's running sum reaches p, and whether it does; else its last value."""
    reached = descending.cumsum(dim=-1, dtype=torch.float64) >= top_p
    last = torch.full_like(reached[:, :1], descending.shape[1] - 1, dtype=torch.int64)
    index = torch.where(reached.any(dim=-1, keepdim=True), reached.int().argmax(dim=-1, keepdim=True), last)
    return descending.gather(1, index), reached.any(dim=-1)


def _column(values: list[float], matching: torch.Tensor) -> torch.Tensor:
    """[R, 1] with the dtype and device of ``matching``."""
    return torch.tensor(values, dtype=matching.dtype, device=matching.device)[:, None]
