"""Samples from the rows of drafts, on rank 0: each row as if the step had computed it alone.

The rows of a slot are those of its last token and of each drafted token. A drafted token is right if the row before it
samples just that token. The rows after the first other token have computed what is not the sequence: they get
UNVERIFIED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow

UNVERIFIED = -6
"""In place of a token id, like the keys of ``sampler.FAILURES`` and GRAMMAR_PENDING: the row is not the sequence's."""


def row_positions(slots: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """The position of each row's token. ``lengths``: of its sequence, so far; rows of a slot follow one another."""
    positions: list[int] = []
    for row, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        positions.append(positions[-1] + 1 if row and slots[row - 1] == slot else length)
    return positions


class DraftSampling:
    """One call of ``sample``.

    Rows of slots without state in the sampler are sampled together. Where penalties, banned words or a grammar depend
    on the tokens before, a row is sampled once the sampler has been told of the row before it.
    """

    def __init__(self, sampler: Sampler, rows: Sequence[SampleRow], drafts: Mapping[int, Sequence[int]]) -> None:
        """``rows``: those of a slot follow one another. ``drafts``: by slot, where a slot has more than one row."""
        self._sampler = sampler
        self._rows = rows
        first = {row.slot: index for index, row in reversed(list(enumerate(rows)))}
        self._expected: list[int | None] = []
        """The drafted token that each row must sample for the next row to count; None: the slot's last row."""
        for index, row in enumerate(rows):
            draft, place = drafts.get(row.slot, ()), index - first[row.slot]
            self._expected.append(draft[place] if place < len(draft) else None)
        self._chosen = [UNVERIFIED] * len(rows)
        self.told: set[int] = set()
        """Rows whose tokens the sampler has been told of. It must be told of the others."""

    def sample(self, logits: torch.Tensor) -> torch.Tensor:
        """[S, vocab] -> int64 [S] on their device: what ``Sampler.sample`` returns, or UNVERIFIED."""
        first = {row.slot: index for index, row in reversed(list(enumerate(self._rows)))}
        turn = [
            index
            for index, row in enumerate(self._rows)
            if index == first[row.slot] or not self._sampler.needs_update(row.slot)
        ]
        while turn:
            tokens = self._sampler.sample(logits[turn], [self._rows[index] for index in turn]).tolist()
            for index, token_id in zip(turn, tokens, strict=True):
                self._chosen[index] = token_id
            turn = [index + 1 for index in turn if self._goes_on(index)]
        for index in range(1, len(self._rows)):
            if self._expected[index - 1] is not None and not self._is_right(index):
                self._chosen[index] = UNVERIFIED
        return torch.tensor(self._chosen, device=logits.device)

    def _goes_on(self, index: int) -> bool:
        """True if the row's token was drafted and the next row waits for it; tells the sampler of it."""
        slot, token_id = self._rows[index].slot, self._chosen[index]
        if token_id != self._expected[index] or not self._sampler.needs_update(slot):
            return False
        self._sampler.update(slot, (token_id,))
        self.told.add(index)
        return True

    def _is_right(self, index: int) -> bool:
        """True if the row before has sampled the token that this row was computed with, and this one has a token. A row
        that fails is computed again as its sequence's next step, which reports the failure."""
        return self._chosen[index - 1] == self._expected[index - 1] and self._chosen[index] >= 0
