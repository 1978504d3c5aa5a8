"""Incremental detokenization of one sequence: holds back incomplete UTF-8, drops special tokens, cuts stop strings.

Pure. Tokens are processed one at a time, so their grouping into replies cannot change the text: streamed and
non-streamed output are equal by construction.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmserve.httpserver.output.deltas import AnswerDelta
from mmserve.httpserver.output.logprobs import LogprobsBuffer, PromptLogprobs
from mmserve.httpserver.output.parsing.pieces import Text
from mmserve.httpserver.output.stop_strings import StopStrings
from mmserve.httpserver.output.vocabulary import REPLACEMENT, Marker, Vocabulary
from mmserve.messages.reply import TokenReply
from mmserve.messages.sampling import SamplingParams

_PLAIN = SamplingParams(max_tokens=1)
_MAX_HELD_TOKENS = 16
"""A character spans at most a few tokens. After this many, the bytes are not UTF-8 and are shown as U+FFFD."""


class IncrementalDecoder:
    """Decodes a window of tokens: those of the last piece (the context) and those not shown yet.

    The context is needed because tokenizers decode the first token of a text differently (they may drop its space).
    """

    def __init__(self, vocabulary: Vocabulary, markers: Mapping[int, Marker] | None = None) -> None:
        self._vocabulary = vocabulary
        self._markers = markers or {}
        """Special tokens that ``read`` returns, by their ids. The others are dropped."""
        self._ids: list[int] = []
        self._num_context = 0
        self._context_text = ""

    def read(self, token_id: int) -> tuple[str, Marker | None]:
        """New text, and the marker that follows it if the token is one. A character cannot go on after a marker."""
        marker = self._markers.get(token_id)
        return (self.push(token_id), None) if marker is None else (self.flush(), marker)

    def push(self, token_id: int) -> str:
        """New text; empty while a character is incomplete."""
        if not self._vocabulary.is_text(token_id):
            return ""
        self._ids.append(token_id)
        return self._decode(force=len(self._ids) - self._num_context >= _MAX_HELD_TOKENS)

    def flush(self) -> str:
        """The rest of the text, with U+FFFD for an incomplete character."""
        return self._decode(force=True)

    def _decode(self, *, force: bool) -> str:
        text = self._vocabulary.decode(self._ids)
        if text.endswith(REPLACEMENT) and not force:
            return ""
        if text.startswith(self._context_text):
            piece = text[len(self._context_text) :]
        else:  # invalid UTF-8 that also changes how the context is decoded
            piece = self._vocabulary.decode(self._ids[self._num_context :])
        if piece:
            self._ids = self._ids[self._num_context :]
            self._num_context = len(self._ids)
            self._context_text = self._vocabulary.decode(self._ids)
        return piece


class Detokenizer:
    """Makes the text of one choice. Call ``push`` for each reply until a delta has ``finish`` set."""

    def __init__(
        self, vocabulary: Vocabulary, index: int, stops: tuple[str, ...], sampling: SamplingParams = _PLAIN
    ) -> None:
        self._decoder = IncrementalDecoder(vocabulary)
        self._stops = StopStrings(stops)
        self._logprobs = LogprobsBuffer(vocabulary)
        self._index = index
        self._sampling = sampling
        self._prompt_logprobs = PromptLogprobs(vocabulary, sampling.prompt_logprobs)
        self._num_tokens = 0

    def push(self, reply: TokenReply) -> AnswerDelta:
        """Text of this reply's tokens. Tokens after a completed stop string are not counted."""
        text, count, stopped = self._read(reply)
        if not stopped and reply.finish is not None:
            tail, stopped = self._stops.push(self._decoder.flush())
            text += tail if stopped else tail + self._stops.flush()
        finish = "stop" if stopped else reply.finish
        logprobs = self._logprobs.take(len(text), rest=finish is not None and not stopped)
        pieces = (Text(text),) if text else ()
        return AnswerDelta(
            self._index,
            pieces,
            count,
            finish,
            reply.num_cached_tokens,
            logprobs,
            stop_reason=self._stops.matched if stopped else self._client_stop_token(reply),
            prompt_logprobs=self._prompt_logprobs.take(reply.prompt_logprobs),
            embedding=reply.embedding,
        )

    def _ends_with_stop_token(self, reply: TokenReply) -> bool:
        """True if the last token is no part of the text, whatever it spells."""
        return (
            reply.finish == "stop" and bool(reply.token_ids) and reply.token_ids[-1] in self._sampling.ending_token_ids
        )

    def _client_stop_token(self, reply: TokenReply) -> int | None:
        """The stop token that ended the choice, if it is the client's and not the model's own."""
        if not self._ends_with_stop_token(reply) or reply.token_ids[-1] in self._sampling.eos_token_ids:
            return None
        return reply.token_ids[-1]

    def _read(self, reply: TokenReply) -> tuple[str, int, bool]:
        pieces, count = [], 0
        num_shown = len(reply.token_ids) - self._ends_with_stop_token(reply)
        for token_id in reply.token_ids:
            new_text = self._decoder.push(token_id) if count < num_shown else ""
            if reply.logprobs and count < num_shown:
                self._logprobs.add(token_id, reply.logprobs[count], len(new_text))
            count += 1
            self._num_tokens += 1
            piece, stopped = self._match(new_text)
            pieces.append(piece)
            if stopped:
                return "".join(pieces), count, True
        return "".join(pieces), count, False

    def _match(self, piece: str) -> tuple[str, bool]:
        """Stop strings apply only from min_tokens on, as stop token ids do in the engine."""
        return (piece, False) if self._num_tokens < self._sampling.min_tokens else self._stops.push(piece)
