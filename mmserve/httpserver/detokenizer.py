"""Tokens of one sequence to text, piece by piece: UTF-8 holdback, special tokens left out, stop strings cut.

Knows tokens and text, not where either goes. Tokens are taken one at a time, so that how the engine groups them
into replies can never change the text: streamed and whole answers are equal by construction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mmserve.httpserver.call import TextDelta
from mmserve.httpserver.stop_strings import StopStrings
from mmserve.messages.reply import TokenReply

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"
_MAX_HELD_TOKENS = 16
"""A character spans at most a few tokens; after this many the bytes are simply not UTF-8 and are shown as such."""


class Vocabulary:
    """A tokenizer as the detokenizer needs it; one per worker, shared by all sequences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    def is_text(self, token_id: int) -> bool:
        """False for special tokens and for ids that the model has but the tokenizer does not."""
        return token_id not in self._special and self._tokenizer.id_to_token(token_id) is not None

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


class TextWindow:
    """Incremental decoding: text of the window is the last piece (context) plus what is not shown yet.

    Decoders treat the first token of a text specially (a leading space may go), hence the context.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids: list[int] = []
        self._num_context = 0
        self._context_text = ""

    def push(self, token_id: int) -> str:
        """New text, empty while a character is incomplete."""
        if not self._vocabulary.is_text(token_id):
            return ""
        self._ids.append(token_id)
        return self._take(force=len(self._ids) - self._num_context >= _MAX_HELD_TOKENS)

    def flush(self) -> str:
        """What is left, with U+FFFD for incomplete characters."""
        return self._take(force=True)

    def _take(self, *, force: bool) -> str:
        text = self._vocabulary.decode(self._ids)
        if text.endswith(_REPLACEMENT) and not force:
            return ""
        piece = text[len(self._context_text) :]
        if piece:
            self._ids = self._ids[self._num_context :]
            self._num_context = len(self._ids)
            self._context_text = self._vocabulary.decode(self._ids)
        return piece


class Detokenizer:
    """The text of one choice. ``push`` replies until a delta carries ``finish``."""

    def __init__(self, vocabulary: Vocabulary, index: int, stops: tuple[str, ...], min_tokens: int = 0) -> None:
        self._window = TextWindow(vocabulary)
        self._stops = StopStrings(stops)
        self._index = index
        self._min_tokens = min_tokens
        self._num_tokens = 0

    def push(self, reply: TokenReply) -> TextDelta:
        """Text of this reply's tokens. ``num_tokens`` and ``finish`` end with a stop string's last token."""
        text, count, stopped = self._read(reply.token_ids)
        if not stopped and reply.finish is not None:
            tail, stopped = self._stops.push(self._window.flush())
            text += tail if stopped else tail + self._stops.flush()
        finish = "stop" if stopped else reply.finish
        return TextDelta(self._index, text, count, finish, reply.num_cached_tokens)

    def _read(self, token_ids: Iterable[int]) -> tuple[str, int, bool]:
        pieces, count = [], 0
        for token_id in token_ids:
            count += 1
            self._num_tokens += 1
            piece, stopped = self._match(self._window.push(token_id))
            pieces.append(piece)
            if stopped:
                return "".join(pieces), count, True
        return "".join(pieces), count, False

    def _match(self, piece: str) -> tuple[str, bool]:
        """Stop strings count only from min_tokens on, as the stop token ids do in the engine."""
        return (piece, False) if self._num_tokens < self._min_tokens else self._stops.push(piece)
