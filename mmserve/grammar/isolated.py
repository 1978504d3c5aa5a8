"""Validates grammars in a child process, which a grammar may end without harm to others.

llguidance has limits, but some short grammars compile for minutes or overflow its stack all the same. Its compiler
cannot be interrupted, so the kernel ends the child at the deadline. ``IsolatedValidator`` is the parent's side; this
module is also what the child runs: it gets the checkpoint's path, then grammars.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from mmserve.checkpoint.config.tokenizer_json import tokenizer_text
from mmserve.grammar.limits import parser_limits
from mmserve.runtime.errors import StartupError
from mmserve.runtime.isolation.killable import ChildDied, KillableChild
from mmserve.runtime.isolation.serving import Answer, limit_memory, serve

DEADLINE_S = 0.7
"""For one grammar. One of 5 KB takes 5 ms."""
_MEMORY_NBYTES = 1 << 30
"""Address space of the child."""
_STACK_NBYTES = 1 << 20
"""Of the thread that compiles in the child. Ranks have several times as much, so what fits here fits there."""
_WALK_TOKENS = 256
"""Length of the text that is generated at random to find errors that show only while a grammar is used."""
_NUM_BYTES = 256
_END = "\ufffe end".encode()
_TOO_COMPLEX = "it is too complex"
logger = logging.getLogger(__name__)


class IsolatedValidator:
    """A child process, started when it is needed and again after its death. Thread-safe: one grammar at a time."""

    def __init__(self, checkpoint: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        # Silent: a panic of the compiler would print parts of the grammar, which is a client's text.
        self._child = KillableChild(__name__, os.fsencode(checkpoint), deadline_s=deadline_s, silent=True)

    def error_of(self, grammar: str) -> str:
        """Why the grammar cannot be used; empty: it can. Raises RuntimeError or OSError if no child can be started."""
        try:
            return self._child.ask(grammar.encode()).decode()
        except ChildDied as death:
            if death.took_too_long:
                return f"{_TOO_COMPLEX}: it compiles for more than {self._deadline_s:g} s"
            logger.warning("a grammar ended the process that validated it (%s): it is refused", death)
            return _TOO_COMPLEX

    def close(self) -> None:
        """Kill the child, also while it works: that grammar counts as too complex."""
        self._child.close()


class _AddedToken(msgspec.Struct):
    content: str
    id: int = 0


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class ByteVocabulary:
    """A vocabulary of all bytes and the checkpoint's added tokens, which a Lark grammar may name.

    It is made in milliseconds, and compiles what the real one compiles. What llguidance's TokenizerWrapper expects.
    """

    bos_token_id = None

    def __init__(self, added: Mapping[int, str]) -> None:
        """``added``: contents by id. They keep their ids, by which grammars may name them; bytes come behind them."""
        self._first = max(added, default=-1) + 1
        names = [added.get(id) or f"\ufffe {id}" for id in range(self._first)]
        # The last one ends texts: some token has to, and the name of a real one must keep its meaning.
        self.tokens = [name.encode() for name in names] + [bytes([byte]) for byte in range(_NUM_BYTES)] + [_END]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [*range(self._first), self.eos_token_id]

    def __call__(self, text: str | bytes) -> list[int]:
        return [self._first + byte for byte in (text if isinstance(text, bytes) else text.encode())]


def byte_tokenizer(checkpoint: Path) -> LLTokenizer:
    """Of a ``ByteVocabulary``. A checkpoint without a readable tokenizer has no added tokens."""
    added: list[_AddedToken] = []
    with suppress(StartupError, msgspec.DecodeError):
        added = msgspec.json.decode(tokenizer_text(checkpoint), type=_TokenizerFile).added_tokens
    return LLTokenizer(TokenizerWrapper(ByteVocabulary({token.id: token.content for token in added if token.content})))


def error_of(grammar: str, tokenizer: LLTokenizer) -> str:
    """Compile the grammar and follow it for some tokens. Why it cannot be used; empty: it can."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    if matcher.is_error():
        return _message(matcher)
    drawn, end = random.Random(0), 1 << tokenizer.eos_token
    for _ in range(_WALK_TOKENS):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            return f"{_TOO_COMPLEX}: {_message(matcher)}"
        if matcher.is_stopped() and matcher.stop_reason() != "NoExtension":
            return f"no text fits it ({matcher.stop_reason()})"
        if not allowed & ~end:
            return "" if allowed else "no text fits it"
        if not matcher.consume_token(_draw(allowed & ~end, drawn)):
            return f"{_TOO_COMPLEX}: {_message(matcher)}"
    return ""


def _draw(bits: int, drawn: random.Random) -> int:
    """The index of a bit that is 1: the first one from a random position on, behind the lowest one."""
    lowest = (bits & -bits).bit_length() - 1
    start = drawn.randrange(lowest, bits.bit_length())
    high = bits >> start
    return start + (high & -high).bit_length() - 1


def _message(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().replace("<non-verbose/>", "").split())


def _set_up(checkpoint: bytes) -> Answer:
    tokenizer = byte_tokenizer(Path(os.fsdecode(checkpoint)))
    limit_memory(_MEMORY_NBYTES)
    return lambda grammar: error_of(grammar.decode(), tokenizer).encode()


if __name__ == "__main__":
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    serve(_set_up, stack_nbytes=_STACK_NBYTES)
