"""Logits processors that ban tokens: they set logits to -inf, and leave the others as they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import torch

from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.attention.interface import Int64s
from mmserve.model_backend.transfers import Transfers

_BANNED = float("-inf")


class AllowedTokens:
    """Bans all tokens but those that the request allows."""

    def __init__(self, vocab_size: int, transfers: Transfers) -> None:
        self._vocab_size, self._transfers = vocab_size, transfers
        self._allowed: dict[int, torch.Tensor] = {}

    @property
    def active(self) -> bool:
        return bool(self._allowed)

    def add_slot(self, slot: int, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> bool:
        if sampling.allowed_token_ids:
            self._allowed[slot] = _ids_in_vocabulary(sampling.allowed_token_ids, self._vocab_size, self._transfers)
        return False

    def remove_slot(self, slot: int) -> None:
        self._allowed.pop(slot, None)

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        """What is allowed does not depend on the output."""

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        for row, slot in enumerate(slots):
            if (allowed := self._allowed.get(slot)) is not None:
                values = logits[row].index_select(0, allowed)
                logits[row].fill_(_BANNED).index_copy_(0, allowed, values)


class BadWords:
    """Bans the token that would complete one of the request's bad words; one of a single token always."""

    def __init__(self, vocab_size: int, transfers: Transfers) -> None:
        self._vocab_size, self._transfers = vocab_size, transfers
        self._always: dict[int, torch.Tensor] = {}
        self._phrases: dict[int, _Phrases] = {}

    @property
    def active(self) -> bool:
        return bool(self._always or self._phrases)

    def add_slot(self, slot: int, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> bool:
        if single := {word[0] for word in sampling.bad_words if len(word) == 1}:
            self._always[slot] = _ids_in_vocabulary(single, self._vocab_size, self._transfers)
        longer = [word for word in sampling.bad_words if len(word) > 1 and 0 <= word[-1] < self._vocab_size]
        if longer:
            self._phrases[slot] = phrases = _Phrases(longer)
            phrases.add(output.tolist())
        return bool(longer)

    def remove_slot(self, slot: int) -> None:
        self._always.pop(slot, None)
        self._phrases.pop(slot, None)

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        if phrases := self._phrases.get(slot):
            phrases.add(token_ids)

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        for row, slot in enumerate(slots):
            if (always := self._always.get(slot)) is not None:
                logits[row].index_fill_(0, always, _BANNED)
            if (phrases := self._phrases.get(slot)) and (completing := phrases.completing_tokens()):
                logits[row].index_fill_(0, self._transfers.to_device(torch.tensor(completing)), _BANNED)


class _Phrases:
    """Sequences of several tokens, and the end of the output, as far as it can be the beginning of one."""

    def __init__(self, phrases: Iterable[tuple[int, ...]]) -> None:
        self._by_last: dict[int, list[tuple[list[int], int]]] = {}
        """Last token of the beginning -> (all tokens of the beginning, the token that completes the phrase)."""
        for *beginning, completing in phrases:
            self._by_last.setdefault(beginning[-1], []).append((beginning, completing))
        longest = max(len(beginning) for group in self._by_last.values() for beginning, _ in group)
        self._end: deque[int] = deque(maxlen=longest)

    def add(self, token_ids: Sequence[int]) -> None:
        """The output got these tokens."""
        self._end.extend(token_ids)

    def completing_tokens(self) -> list[int]:
        """Tokens that would complete a phrase now."""
        if not self._end or not (group := self._by_last.get(self._end[-1])):
            return []
        end = list(self._end)
        return [completing for beginning, completing in group if end[-len(beginning) :] == beginning]


class MinTokens:
    """Bans the tokens that would end the sequence until the output has ``min_tokens`` tokens."""

    def __init__(self, vocab_size: int, transfers: Transfers) -> None:
        self._vocab_size, self._transfers = vocab_size, transfers
        self._num_left: dict[int, int] = {}
        self._banned: dict[int, torch.Tensor] = {}

    @property
    def active(self) -> bool:
        return bool(self._banned)

    def add_slot(self, slot: int, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> bool:
        if sampling.ending_token_ids and len(output) < sampling.min_tokens:
            self._num_left[slot] = sampling.min_tokens - len(output)
            self._banned[slot] = _ids_in_vocabulary(sampling.ending_token_ids, self._vocab_size, self._transfers)
        return slot in self._banned

    def remove_slot(self, slot: int) -> None:
        self._num_left.pop(slot, None)
        self._banned.pop(slot, None)

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        if (num_left := self._num_left.get(slot)) is None:
            return
        if num_left <= len(token_ids):
            self.remove_slot(slot)
        else:
            self._num_left[slot] = num_left - len(token_ids)

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> None:
        for row, slot in enumerate(slots):
            if (banned := self._banned.get(slot)) is not None:
                logits[row].index_fill_(0, banned, _BANNED)


def _ids_in_vocabulary(token_ids: Iterable[int], vocab_size: int, transfers: Transfers) -> torch.Tensor:
    """int64 [n], without the ids that the model does not have."""
    found = [token_id for token_id in token_ids if 0 <= token_id < vocab_size]
    return transfers.to_device(torch.tensor(found, dtype=torch.int64))
