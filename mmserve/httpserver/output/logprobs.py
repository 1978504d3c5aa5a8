"""Log-probabilities on their way beside the text. Knows tokens and how much text is out, not what holds text back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mmserve.httpserver.output.vocabulary import Spelling, Vocabulary
from mmserve.messages.logprobs import unpack


class Likelihood(NamedTuple):
    """A token that could have come, and how likely it was."""

    spelling: Spelling
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one token of the answer. Spelt only when read, for what waits for a slow client should be small."""

    vocabulary: Vocabulary
    packed: bytes
    first: bool
    """Does the text begin with it?"""

    def spelt(self) -> tuple[Likelihood, list[Likelihood]]:
        """The token itself, and the most likely ones."""
        own, *likely = (
            Likelihood(self.vocabulary.spell(token_id, first=self.first), logprob)
            for token_id, logprob in unpack(self.packed)
        )
        return own, likely


class HeldLogprobs:
    """Of one choice's tokens, in order. Each comes out with the first character of its token, so with a stop string go
    those of which no character is shown. Tokens that are no text (the stop token, say) are in no answer, nor here."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._waiting: deque[tuple[int, TokenLogprobs]] = deque()
        """With the place in the text at which the token begins."""
        self._first = True
        self._made_chars = 0
        self._shown_chars = 0

    def add(self, token_id: int, packed: bytes, num_chars: int) -> None:
        """A token, and how much text it has made: none while a character is incomplete."""
        if self._vocabulary.is_text(token_id):
            self._waiting.append((self._made_chars, TokenLogprobs(self._vocabulary, packed, self._first)))
            self._first = False
        self._made_chars += num_chars

    def take(self, num_chars: int, *, rest: bool) -> tuple[TokenLogprobs, ...]:
        """Those that go with the next ``num_chars`` of text; ``rest``: all, for this is the end."""
        self._shown_chars += num_chars
        return tuple(self._until(rest)) if self._waiting else ()

    def _until(self, rest: bool) -> Iterator[TokenLogprobs]:
        while self._waiting and (rest or self._waiting[0][0] < self._shown_chars):
            yield self._waiting.popleft()[1]
