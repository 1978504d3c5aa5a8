"""Logprobs of output tokens, delivered with the text of their token. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mmserve.httpserver.output.vocabulary import Spelling, Vocabulary
from mmserve.messages.logprobs import NO_TOKEN, first_id, row_nbytes, unpack


class LogprobEntry(NamedTuple):
    """One candidate token and its logprob."""

    spelling: Spelling
    logprob: float
    token_id: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs of one output token. Decoded only when read, so that queued deltas of a slow client stay small."""

    vocabulary: Vocabulary
    packed: bytes
    first: bool
    """True for the first token of the text, which tokenizers may decode without its leading space."""

    @property
    def spelling(self) -> Spelling:
        """The sampled token."""
        return self.vocabulary.spell(first_id(self.packed), first=self.first)

    def decode(self) -> tuple[LogprobEntry, list[LogprobEntry]]:
        """The sampled token, and the most likely tokens."""
        sampled, *top = (
            LogprobEntry(self.vocabulary.spell(token_id, first=self.first), logprob, token_id)
            for token_id, logprob in unpack(self.packed)
            if token_id != NO_TOKEN
        )
        return sampled, top


class LogprobsBuffer:
    """Logprobs of one choice's tokens, in order, until the text of their token is released.

    An entry is released with the first character of its token. So entries of tokens that a stop string cuts off
    entirely are dropped. Special tokens have an entry only if they are shown.
    """

    def __init__(self, vocabulary: Vocabulary, *, continues: bool = False, special: bool = False) -> None:
        """``continues``: the text follows another one, so that its first token keeps its leading space. ``special``:
        special tokens are shown."""
        self._special = special
        self._vocabulary = vocabulary
        self._pending: deque[tuple[int, TokenLogprobs]] = deque()
        """With the offset in the text at which the token starts."""
        self._first = not continues
        self._num_decoded_chars = 0
        self._num_released_chars = 0

    def add(self, token_id: int, packed: bytes, num_chars: int) -> None:
        """Add a token that produced ``num_chars`` of text (0 while a character is incomplete)."""
        if self._vocabulary.is_text(token_id, special=self._special):
            self._pending.append((self._num_decoded_chars, TokenLogprobs(self._vocabulary, packed, self._first)))
            self._first = False
        self._num_decoded_chars += num_chars

    def take(self, num_chars: int, *, rest: bool) -> tuple[TokenLogprobs, ...]:
        """Entries for the next ``num_chars`` of text. ``rest``: all remaining entries; this is the end of the text."""
        self._num_released_chars += num_chars
        return tuple(self._until(rest)) if self._pending else ()

    def _until(self, rest: bool) -> Iterator[TokenLogprobs]:
        while self._pending and (rest or self._pending[0][0] < self._num_released_chars):
            yield self._pending.popleft()[1]


class PromptLogprobs:
    """Entries of one choice's prompt from the rows of its replies. ``top``: as in SamplingParams; None: not wanted."""

    def __init__(self, vocabulary: Vocabulary, top: int | None) -> None:
        self._vocabulary = vocabulary
        self._row_nbytes = row_nbytes(top or 0)
        self._first_is_due = top is not None

    def take(self, rows: bytes) -> tuple[TokenLogprobs | None, ...]:
        """The entries of the next rows; the first call also brings the one of the prompt's first token, None."""
        first = (None,) if self._first_is_due else ()
        self._first_is_due = False
        return first + tuple(
            self._entry(rows[start : start + self._row_nbytes]) for start in range(0, len(rows), self._row_nbytes)
        )

    def _entry(self, row: bytes) -> TokenLogprobs | None:
        is_image = row.startswith(_NO_TOKEN)
        return None if is_image else TokenLogprobs(self._vocabulary, row, first=False)


_NO_TOKEN = NO_TOKEN.to_bytes(4, "little", signed=True)
