"""Tokens of one sequence to text, piece by piece: UTF-8 holdback, special tokens left out, stop strings cut.

Knows tokens and text, not where either goes. Tokens are taken one at a time, so that how the engine groups them
into replies can never change the text: streamed and whole answers are equal by construction.
"""

from __future__ import annotations

from mmserve.httpserver.output.deltas import TextDelta
from mmserve.httpserver.output.logprobs import HeldLogprobs
from mmserve.httpserver.output.stop_strings import StopStrings
from mmserve.httpserver.output.vocabulary import REPLACEMENT, Vocabulary
from mmserve.messages.reply import TokenReply

_MAX_HELD_TOKENS = 16
"""A character spans at most a few tokens; after this many the bytes are simply not UTF-8 and are shown as such."""


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
        if text.endswith(REPLACEMENT) and not force:
            return ""
        if text.startswith(self._context_text):
            piece = text[len(self._context_text) :]
        else:  # bytes that are no character, where the decoder shows those of the last piece as such too
            piece = self._vocabulary.decode(self._ids[self._num_context :])
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
        self._logprobs = HeldLogprobs(vocabulary)
        self._index = index
        self._min_tokens = min_tokens
        self._num_tokens = 0

    def push(self, reply: TokenReply) -> TextDelta:
        """Text of this reply's tokens. ``num_tokens`` and ``finish`` end with a stop string's last token."""
        text, count, stopped = self._read(reply)
        if not stopped and reply.finish is not None:
            tail, stopped = self._stops.push(self._window.flush())
            text += tail if stopped else tail + self._stops.flush()
        finish = "stop" if stopped else reply.finish
        logprobs = self._logprobs.take(len(text), rest=finish is not None and not stopped)
        return TextDelta(self._index, text, count, finish, reply.num_cached_tokens, logprobs)

    def _read(self, reply: TokenReply) -> tuple[str, int, bool]:
        pieces, count = [], 0
        for token_id in reply.token_ids:
            made = self._window.push(token_id)
            if reply.logprobs:
                self._logprobs.add(token_id, reply.logprobs[count], len(made))
            count += 1
            self._num_tokens += 1
            piece, stopped = self._match(made)
            pieces.append(piece)
            if stopped:
                return "".join(pieces), count, True
        return "".join(pieces), count, False

    def _match(self, piece: str) -> tuple[str, bool]:
        """Stop strings count only from min_tokens on, as the stop token ids do in the engine."""
        return (piece, False) if self._num_tokens < self._min_tokens else self._stops.push(piece)
