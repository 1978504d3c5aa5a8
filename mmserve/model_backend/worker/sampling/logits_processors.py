"""Changes to the logits of single sequences before a token is sampled: penalties and biases. See also ``token_bans``.

A processor keeps its own state for each slot: it is told when a sequence enters a slot, which tokens it gets, and when
it leaves. A step then costs in proportion to what has changed, not to the length of the sequence. To add a processor,
write one more class and name it in ``make_processors``. Ids outside the vocabulary are ignored by all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.worker.sampling.token_bans import AllowedTokens, BadWords, MinTokens

_MIN_CAPACITY = 64
Int64s = npt.NDArray[np.int64]


class LogitsProcessor(Protocol):
    """Owns the state of the slots that it applies to; slots whose parameters do not need it cost nothing.

    ``active``: some slot has state here; ``apply`` is called only then.

    ``add_slot`` may raise: only that sequence fails, and the slot is removed from all processors. An error in ``apply``
    fails all sequences of the step; with several ranks the engine restarts. ``remove_slot`` and ``update`` must not
    raise: that ends the rank.
    """

    @property
    def active(self) -> bool: ...

    def add_slot(self, slot: int, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> bool:
        """A sequence enters a free slot, with the output that it has already (after preemption or a restart).

        True if the processor needs ``update`` for the slot.
        """
        ...

    def remove_slot(self, slot: int) -> None:
        """Forget the slot, which may have no state here."""
        ...

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        """The slot's sequence got these output tokens."""
        ...

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        """Change float32 logits [S, vocab] in place; row i belongs to ``slots[i]``. -inf bans a token."""
        ...


def make_processors(vocab_size: int, transfers: Transfers) -> list[LogitsProcessor]:
    """All processors, in the order in which they apply. Bans come first: -inf stays -inf whatever is added to it or
    multiplied with it."""
    bans: list[LogitsProcessor] = [
        AllowedTokens(vocab_size, transfers),
        BadWords(vocab_size, transfers),
        MinTokens(vocab_size, transfers),
    ]
    return [*bans, Penalties(vocab_size, transfers), LogitBias(vocab_size, transfers)]


class Penalties:
    """Repetition penalty (Keskar et al. 2019) on tokens of prompt and output; presence and frequency penalties
    (OpenAI's definition) on tokens of the output."""

    def __init__(self, vocab_size: int, transfers: Transfers) -> None:
        self._vocab_size, self._transfers = vocab_size, transfers
        self._repetition: dict[int, _RepetitionPenalty] = {}
        self._occurrence: dict[int, _OccurrencePenalties] = {}

    @property
    def active(self) -> bool:
        return bool(self._repetition or self._occurrence)

    def add_slot(self, slot: int, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> bool:
        if sampling.repetition_penalty != 1.0:
            tokens = self._in_vocabulary(np.concatenate((prompt, output)))
            self._repetition[slot] = _RepetitionPenalty(sampling.repetition_penalty, tokens, self._transfers)
        if sampling.presence_penalty or sampling.frequency_penalty:
            self._occurrence[slot] = _OccurrencePenalties(
                sampling.presence_penalty, sampling.frequency_penalty, self._in_vocabulary(output), self._transfers
            )
        return slot in self._repetition or slot in self._occurrence

    def remove_slot(self, slot: int) -> None:
        self._repetition.pop(slot, None)
        self._occurrence.pop(slot, None)

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        if repetition := self._repetition.get(slot):
            for token_id in token_ids:
                repetition.add(token_id)
        if occurrence := self._occurrence.get(slot):
            for token_id in token_ids:
                occurrence.add(token_id)

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        for row, slot in enumerate(slots):
            if repetition := self._repetition.get(slot):
                repetition.apply(logits[row])
            if occurrence := self._occurrence.get(slot):
                occurrence.apply(logits[row])

    def _in_vocabulary(self, tokens: Int64s) -> Int64s:
        return tokens[(tokens >= 0) & (tokens < self._vocab_size)]


class LogitBias:
    """Adds the request's bias to the logits that it names."""

    def __init__(self, vocab_size: int, transfers: Transfers) -> None:
        self._vocab_size, self._transfers = vocab_size, transfers
        self._biases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def active(self) -> bool:
        return bool(self._biases)

    def add_slot(self, slot: int, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> bool:
        if bias := {token: value for token, value in sampling.logit_bias.items() if 0 <= token < self._vocab_size}:
            values = self._transfers.to_device(torch.tensor(list(bias.values()), dtype=torch.float32))
            self._biases[slot] = self._transfers.to_device(torch.tensor(list(bias))), values
        return False

    def remove_slot(self, slot: int) -> None:
        self._biases.pop(slot, None)

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        """A bias does not depend on the output."""

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        for row, slot in enumerate(slots):
            if bias := self._biases.get(slot):
                ids, values = bias
                logits[row].index_add_(0, ids, values)


class _RepetitionPenalty:
    """Divides positive logits of a slot's distinct tokens by the penalty and multiplies the others with it."""

    def __init__(self, penalty: float, tokens: Int64s, transfers: Transfers) -> None:
        self._penalty = penalty
        distinct = np.unique(tokens)
        self._seen = set(distinct.tolist())
        self._ids = _GrowingTensor(transfers.to_device(torch.from_numpy(distinct)))

    def add(self, token_id: int) -> None:
        if token_id not in self._seen:
            self._seen.add(token_id)
            self._ids.append(token_id)

    def apply(self, logits: torch.Tensor) -> None:
        ids = self._ids.values
        values = logits.index_select(0, ids)
        logits.scatter_(0, ids, torch.where(values > 0, values / self._penalty, values * self._penalty))


class _OccurrencePenalties:
    """Subtracts ``presence + frequency * count`` from the logits of a slot's distinct output tokens."""

    def __init__(self, presence: float, frequency: float, output: Int64s, transfers: Transfers) -> None:
        self._presence, self._frequency = presence, frequency
        distinct, counts = np.unique(output, return_counts=True)
        self._counts = counts.tolist()
        self._index = {token_id: index for index, token_id in enumerate(distinct.tolist())}
        self._ids = _GrowingTensor(transfers.to_device(torch.from_numpy(distinct)))
        # Negative, so that they can be added in place.
        changes = transfers.to_device(torch.from_numpy(-(presence + frequency * counts)).float())
        self._changes = _GrowingTensor(changes)

    def add(self, token_id: int) -> None:
        index = self._index.setdefault(token_id, len(self._counts))
        if index == len(self._counts):
            self._counts.append(1)
            self._ids.append(token_id)
            self._changes.append(-(self._presence + self._frequency))
        else:
            self._counts[index] += 1
            self._changes.values[index] = -(self._presence + self._frequency * self._counts[index])

    def apply(self, logits: torch.Tensor) -> None:
        logits.index_add_(0, self._ids.values, self._changes.values)


class _GrowingTensor:
    """A one-dimensional tensor that is appended to in amortised constant time."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self._memory = values

    def append(self, value: float) -> None:
        length = len(self.values)
        if length == len(self._memory):
            self._memory = torch.empty(
                max(_MIN_CAPACITY, 2 * length), dtype=self.values.dtype, device=self.values.device
            )
            self._memory[:length] = self.values
        self._memory[length] = value
        self.values = self._memory[: length + 1]
