"""A written prompt as its choices repeat it: its text, and where in it each of its tokens stands. Pure."""

from __future__ import annotations

import codecs
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from mmserve.httpserver.conversation import WrittenPrompt
from mmserve.httpserver.output.vocabulary import Spelling, Vocabulary


class TextOffsets:
    """Counts the characters of a text from the bytes of its tokens, from character ``start`` on.

    A token that holds a part of a character starts where the character does.
    """

    def __init__(self, start: int = 0) -> None:
        self.at = start
        """The end of the last whole character."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> int:
        """Add a token; returns where it starts."""
        start = self.at
        self.at += len(self._decoder.decode(data))
        return start

    def end_character(self) -> None:
        """The bytes of an incomplete character are a character of their own."""
        self.at += len(self._decoder.decode(b"", final=True))
        self._decoder.reset()


@dataclass(frozen=True, slots=True)
class EchoedToken:
    """One token and its characters [start, end) of the text. ``first``: as in ``Vocabulary.spell``."""

    token_id: int
    spelling: Spelling
    first: bool
    start: int
    end: int


@dataclass(frozen=True)
class EchoedPrompt:
    """``text``: what the client wrote, or the text of the token ids that it sent, special tokens included."""

    text: str
    token_ids: array[int]
    vocabulary: Vocabulary

    @classmethod
    def of(cls, prompt: WrittenPrompt, token_ids: array[int], vocabulary: Vocabulary) -> EchoedPrompt:
        """``token_ids``: of the whole prompt. Takes milliseconds for a long list."""
        text = prompt.content if isinstance(prompt.content, str) else vocabulary.decode(list(token_ids))
        return cls(text, token_ids, vocabulary)

    @property
    def nbytes(self) -> int:
        return sys.getsizeof(self.text) + sys.getsizeof(self.token_ids)

    def tokens(self) -> Iterator[EchoedToken]:
        """All tokens in order. Together they cover the text.

        A special token that is not part of the text, as a bos token that the tokenizer adds, covers no character. Where
        a tokenizer changes the text before it splits it, places are as near as the length of the tokens tells.
        """
        offsets, last = TextOffsets(), len(self.token_ids) - 1
        for index, token_id in enumerate(self.token_ids):
            first = offsets.at == 0
            spelling = self.vocabulary.spell(token_id, first=first)
            if spelling.data is None:
                offsets.end_character()
                start = offsets.at
                offsets.at += len(spelling.text) if self.text.startswith(spelling.text, start) else 0
            else:
                start = offsets.add(spelling.data)
            size = len(self.text)
            yield EchoedToken(
                token_id, spelling, first, min(start, size), size if index == last else min(offsets.at, size)
            )
