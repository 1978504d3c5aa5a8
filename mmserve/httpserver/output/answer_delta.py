"""What is new in an answer, how much work and memory it is, and how deltas that nobody has read are merged. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mmserve.httpserver.output.logprobs import TokenLogprobs
from mmserve.httpserver.output.parsing.pieces import Piece, Text, characters, join
from mmserve.httpserver.output.render_turns import LIMIT
from mmserve.messages.logprobs import PAIR_NBYTES
from mmserve.messages.relay import Sampled
from mmserve.messages.reply import FinishReason


@dataclass(frozen=True)
class AnswerDelta:
    """What is new in choice ``index``. ``finish`` is set on the last delta of a choice."""

    index: int
    pieces: tuple[Piece, ...]
    num_tokens: int
    finish: FinishReason | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    """For tokens whose text starts in this delta, if the call asked for them."""
    stop_reason: int | str | None = None
    """With finish "stop": the client's stop token or stop string that ended the choice. None: the model's own token."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
    """For the next tokens of the prompt, if the call asked for them. None: the first token, and tokens of images."""
    embedding: bytes = b""
    """float32 [hidden], not normalised, on the last delta of a call with ``pooling``."""
    num_reasoning_tokens: int = 0
    """Of ``num_tokens``."""
    token_ids: tuple[int, ...] = ()
    """The ``num_tokens`` tokens, if the call asked for them."""

    sampled: Sampled | None = None
    """The tokens as the engine sent them, of a call that a front relays: another server could make the delta again."""
    replayed: bool = False
    """Made again from tokens of another server: as large as there, so it is not merged with others."""

    @property
    def text(self) -> str:
        """The text of this delta that the user reads."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))


EVENT_WORK = 12
"""Work of sending one delta with a few characters, in the unit of RenderTurns."""
_CHARS_PER_WORK = 250
_EMBEDDING_NBYTES_PER_WORK = 32
_MERGED_WORK = LIMIT // 4
"""Merged deltas are at most this much work, if each alone is."""


_DELTA_NBYTES, _PIECE_NBYTES, _LOGPROBS_NBYTES = 600, 60, 160
"""Memory of a delta, of a piece and of one token's log-probabilities, besides their text and data."""


def nbytes_of(delta: AnswerDelta) -> int:
    """Memory that an unread delta takes."""
    tokens = [token for token in (*delta.logprobs, *delta.prompt_logprobs) if token is not None]
    logprobs = sum(len(token.packed) + _LOGPROBS_NBYTES for token in tokens) + 8 * len(delta.prompt_logprobs)
    return (
        len(delta.embedding)
        + _DELTA_NBYTES
        + TOKEN_ID_NBYTES * len(delta.token_ids)
        + sum(_PIECE_NBYTES + sys.getsizeof(characters(piece)) for piece in delta.pieces)
        + logprobs
        + (0 if delta.sampled is None else _sampled_nbytes(delta.sampled))
    )


def _sampled_nbytes(sampled: Sampled) -> int:
    return TOKEN_ID_NBYTES * len(sampled.token_ids) + sum(map(sys.getsizeof, sampled.logprobs))


TOKEN_ID_NBYTES = 40
"""Memory of a token id in a tuple, and of its JSON."""


class Unread:
    """Deltas of one choice that nobody has read. ``nbytes``: memory that they take."""

    def __init__(self, delta: AnswerDelta) -> None:
        self.index = delta.index
        self.nbytes = nbytes_of(delta)
        self.work = EVENT_WORK + _work(delta)
        self._deltas = [delta]

    def add(self, delta: AnswerDelta) -> bool:
        """False if the delta is to be read separately."""
        if delta.replayed or self._deltas[-1].replayed:
            return False
        work = _work(delta)
        if self.work + work > _MERGED_WORK:
            return False
        self.work += work
        self.nbytes += nbytes_of(delta)
        self._deltas.append(delta)
        if len(self._deltas) > _MERGED_DELTAS:
            self._deltas = [self.delta()]
        return True

    def delta(self) -> AnswerDelta:
        if len(self._deltas) == 1:
            return self._deltas[0]
        return AnswerDelta(
            self.index,
            tuple(join(piece for delta in self._deltas for piece in delta.pieces)),
            sum(delta.num_tokens for delta in self._deltas),
            self._deltas[-1].finish,
            max(delta.cached_tokens for delta in self._deltas),
            tuple(token for delta in self._deltas for token in delta.logprobs),
            self._deltas[-1].stop_reason,
            tuple(token for delta in self._deltas for token in delta.prompt_logprobs),
            self._deltas[-1].embedding,
            sum(delta.num_reasoning_tokens for delta in self._deltas),
            tuple(token_id for delta in self._deltas for token_id in delta.token_ids),
            _joined([delta.sampled for delta in self._deltas if delta.sampled is not None]),
        )


def _joined(sampled: Sequence[Sampled]) -> Sampled | None:
    """Those of merged deltas."""
    if not sampled:
        return None
    first, last = sampled[0], sampled[-1]
    return Sampled(
        first.index,
        tuple(token_id for each in sampled for token_id in each.token_ids),
        tuple(packed for each in sampled for packed in each.logprobs),
        last.finish,
        max(each.num_cached_tokens for each in sampled),
    )


_MERGED_DELTAS = 64
"""Deltas kept until they are joined. Joining each at once would copy a long text again and again."""


def _work(delta: AnswerDelta) -> int:
    tokens = (token for token in (*delta.logprobs, *delta.prompt_logprobs) if token is not None)
    logprobs = sum(len(token.packed) for token in tokens) // PAIR_NBYTES
    embedding = len(delta.embedding) // _EMBEDDING_NBYTES_PER_WORK
    return logprobs + embedding + sum(len(characters(piece)) for piece in delta.pieces) // _CHARS_PER_WORK


def parts_of(delta: AnswerDelta) -> Iterator[AnswerDelta]:
    """The delta, with the log-probabilities of a long piece of the prompt in several deltas before it."""
    rows = delta.prompt_logprobs
    widest = max((len(row.packed) for row in rows if row is not None), default=0) // PAIR_NBYTES
    num_rows = max(1, _MERGED_WORK // (widest or 1))
    if len(rows) <= num_rows:
        yield delta
        return
    last = (len(rows) - 1) // num_rows * num_rows
    for start in range(0, last, num_rows):
        yield AnswerDelta(delta.index, (), 0, prompt_logprobs=rows[start : start + num_rows])
    yield replace(delta, prompt_logprobs=rows[last:])
