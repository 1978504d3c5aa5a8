"""Incremental detokenization of one sequence: holds back incomplete UTF-8, drops special tokens, cuts stop strings.

Pure. Tokens are processed one at a time, so their grouping into replies cannot change the text: streamed and
non-streamed output are equal by construction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmserve.httpserver.call import TokenView
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.answer_format import Reading
from mmserve.httpserver.output.logprobs import LogprobsBuffer, PromptLogprobs
from mmserve.httpserver.output.parsing.pieces import CallEnd, Piece, Text, join
from mmserve.httpserver.output.stop_strings import StopStrings
from mmserve.httpserver.output.vocabulary import REPLACEMENT, Marker, Vocabulary
from mmserve.messages.reply import TokenReply
from mmserve.messages.sampling import SamplingParams

_PLAIN = SamplingParams(max_tokens=1)
_PLAIN_VIEW = TokenView()
_MAX_HELD_TOKENS = 16
"""A character spans at most a few tokens. After this many, the bytes are not UTF-8 and are shown as U+FFFD."""


class IncrementalDecoder:
    """Decodes a window of tokens: those of the last piece (the context) and those not shown yet.

    The context is needed because tokenizers decode the first token of a text differently (they may drop its space).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        markers: Mapping[int, Marker] | None = None,
        context: Sequence[int] = (),
        *,
        special: bool = False,
    ) -> None:
        """``context``: the last tokens of a text that goes on. ``special``: show special tokens."""
        self._special = special
        self._vocabulary = vocabulary
        self._markers = markers or {}
        """Special tokens that ``read`` returns, by their ids. The others are dropped."""
        self._ids = [token_id for token_id in context if vocabulary.is_text(token_id)]
        self._num_context = len(self._ids)
        self._context_text = vocabulary.decode(self._ids) if self._ids else ""

    def read(self, token_id: int) -> tuple[str, Marker | None]:
        """New text, and the marker that follows it if the token is one. A character cannot go on after a marker."""
        marker = self._markers.get(token_id)
        return (self.push(token_id), None) if marker is None else (self.flush(), marker)

    def push(self, token_id: int) -> str:
        """New text; empty while a character is incomplete."""
        if not self._vocabulary.is_text(token_id, special=self._special):
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
    """Makes the pieces of one choice. Call ``push`` for each reply until a delta has ``finish`` set.

    ``reading``: None if the whole answer is text.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        index: int,
        stops: tuple[str, ...],
        sampling: SamplingParams = _PLAIN,
        reading: Reading | None = None,
        context: Sequence[int] = (),
        view: TokenView = _PLAIN_VIEW,
    ) -> None:
        """``context``: the last tokens of the text that the choice goes on with; empty if it is a text of its own."""
        special = not view.skip_special_tokens
        self._machine = None if reading is None else reading.machine()
        self._decoder = IncrementalDecoder(
            vocabulary, None if reading is None else reading.markers, context, special=special
        )
        self._one_call = reading is not None and reading.one_call
        self._stop_strings = stops
        self._stops = StopStrings(stops, include=view.include_stop)
        self._logprobs = LogprobsBuffer(vocabulary, continues=bool(context), special=special)
        self._view = view
        self._index = index
        self._sampling = sampling
        self._prompt_logprobs = PromptLogprobs(vocabulary, sampling.prompt_logprobs)
        self._num_tokens = 0

    def push(self, reply: TokenReply) -> AnswerDelta:
        """The pieces of this reply's tokens. Tokens after a completed stop string, or after the only call, are not
        counted."""
        found = _Found()
        hides_last = self._ends_with_stop_token(reply) and not self._view.include_stop
        num_shown = len(reply.token_ids) - hides_last
        for number, token_id in enumerate(reply.token_ids):
            self._count(found)
            if number < num_shown:
                self._read(token_id, reply.logprobs[number] if reply.logprobs else None, found)
            if found.ended:
                break
        if not found.ended and reply.finish is not None:
            self._end(found)
        finish = "stop" if found.ended else reply.finish
        shown_chars = found.num_chars if self._machine is not None else sum(len(text) for text in found.texts())
        logprobs = self._logprobs.take(shown_chars, rest=finish is not None and not found.ended)
        return AnswerDelta(
            self._index,
            tuple(join(found.pieces)),
            found.num_tokens,
            finish,
            reply.num_cached_tokens,
            logprobs,
            stop_reason=found.stop if found.ended else self._client_stop_token(reply),
            prompt_logprobs=self._prompt_logprobs.take(reply.prompt_logprobs),
            embedding=reply.embedding,
            num_reasoning_tokens=found.num_reasoning_tokens,
            token_ids=reply.token_ids[: found.num_tokens] if self._view.token_ids else (),
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

    def _count(self, found: _Found) -> None:
        found.num_tokens += 1
        self._num_tokens += 1
        found.num_reasoning_tokens += self._machine is not None and self._machine.in_reasoning

    def _read(self, token_id: int, packed: bytes | None, found: _Found) -> None:
        text, marker = self._decoder.read(token_id)
        if packed is not None:
            self._logprobs.add(token_id, packed, len(text))
        found.num_chars += len(text)
        machine = self._machine
        if machine is None:
            return self._show([Text(text)], found)
        self._show(machine.push(text), found)
        if marker is not None and not found.ended:
            self._show(machine.push_marker(marker.name), found)

    def _end(self, found: _Found) -> None:
        """No token follows: show what was held back."""
        text = self._decoder.flush()
        found.num_chars += len(text)
        machine = self._machine
        self._show([Text(text)] if machine is None else [*machine.push(text), *machine.finish()], found)
        if not found.ended:
            found.pieces.append(Text(self._stops.flush()))

    def _show(self, pieces: Sequence[Piece], found: _Found) -> None:
        """Add pieces up to a stop string in the text, or to the end of the only call."""
        for piece in pieces:
            if isinstance(piece, Text):
                text, found.ended = self._match(piece.text)
                found.pieces.append(Text(text))
                found.stop = self._stops.matched if found.ended else None
            else:
                if self._stop_strings and (held := self._stops.flush()):
                    found.pieces.append(Text(held))  # no stop string goes on after a thought or a call
                    self._stops = StopStrings(self._stop_strings, include=self._view.include_stop)
                found.pieces.append(piece)
                found.ended = self._one_call and isinstance(piece, CallEnd)
            if found.ended:
                return

    def _match(self, text: str) -> tuple[str, bool]:
        """Stop strings apply only from min_tokens on, as stop token ids do in the engine."""
        return (text, False) if self._num_tokens < self._sampling.min_tokens else self._stops.push(text)


@dataclass
class _Found:
    """What one reply holds. ``ended``: a stop string or the only call is complete; ``stop``: the stop string."""

    pieces: list[Piece] = field(default_factory=list)
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_chars: int = 0
    """Decoded, shown or not."""
    ended: bool = False
    stop: str | None = None

    def texts(self) -> Iterator[str]:
        return (piece.text for piece in self.pieces if isinstance(piece, Text))
