"""Validates grammars in a child process, which a grammar may end without harm to others.

llguidance has limits, but some short grammars compile for minutes or overflow its stack all the same. Its compiler
cannot be interrupted, so the kernel ends the child at the deadline. ``IsolatedValidator`` is the parent's side; the
child is this module's ``main``.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from mmserve.grammar.limits import parser_limits
from mmserve.runtime.frames import read_frame, write_frame

DEADLINE_S = 0.7
"""For one grammar. One of 5 KB takes 5 ms."""
_MEMORY_NBYTES = 1 << 30
"""Address space of the child."""
_STACK_NBYTES = 1 << 20
"""Of the thread that compiles in the child. Ranks have several times as much, so what fits here fits there."""
_WALK_TOKENS = 256
"""Length of the text that is generated at random to find errors that show only while a grammar is used."""
_NUM_BYTES = 256
_TOO_COMPLEX = "it is too complex"
_READY = b"ready"
logger = logging.getLogger(__name__)


class IsolatedValidator:
    """A child process, started when it is needed and again after its death. Thread-safe: one grammar at a time."""

    def __init__(self, checkpoint: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._checkpoint = checkpoint
        self._deadline_s = deadline_s
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def error_of(self, grammar: str) -> str:
        """Why the grammar cannot be used; empty: it can. Raises RuntimeError or OSError if no child can be started."""
        with self._lock:
            child = self._child or self._start()
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                write_frame(child.stdin, grammar.encode())
                return read_frame(child.stdout).decode()
            except (BrokenPipeError, EOFError):
                return self._killed(child)

    def close(self) -> None:
        """Kill the child, also while it works: that grammar counts as too complex."""
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            if self._child is not None:
                self._end(self._child)

    def _start(self) -> subprocess.Popen[bytes]:
        # As in the parent, the working directory is on the import path only if it was meant to be.
        safe = ["-P"] if sys.flags.safe_path else []
        command = [sys.executable, *safe, "-m", __name__, self._checkpoint, str(self._deadline_s)]
        # A panic of the compiler would print parts of the grammar, which is a client's text.
        quiet = subprocess.DEVNULL
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet)
        self._child = child
        assert child.stdout is not None
        try:
            read_frame(child.stdout)
        except EOFError:
            self._end(child)
            raise RuntimeError(f"the grammar validator did not start (exit code {child.returncode})") from None
        return child

    def _killed(self, child: subprocess.Popen[bytes]) -> str:
        self._end(child)
        if child.returncode == -signal.SIGALRM:
            return f"{_TOO_COMPLEX}: it compiles for more than {self._deadline_s:g} s"
        code = child.returncode
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        logger.warning("a grammar ended the process that validated it (%s): it is refused", cause)
        return _TOO_COMPLEX

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        self._child = None
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        child.wait()


class _AddedToken(msgspec.Struct):
    content: str


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class ByteVocabulary:
    """A vocabulary of all bytes and the checkpoint's added tokens, which a Lark grammar may name.

    It is made in a millisecond, and compiles what the real one compiles. What llguidance's TokenizerWrapper expects.
    """

    bos_token_id = None

    def __init__(self, added: list[str]) -> None:
        # The last one ends texts: some token has to, and the name of a real one must keep its meaning.
        self.tokens = [bytes([byte]) for byte in range(_NUM_BYTES)] + [text.encode() for text in (*added, "\ufffe end")]
        self.special_token_ids = list(range(_NUM_BYTES, len(self.tokens)))
        self.eos_token_id = len(self.tokens) - 1

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def byte_tokenizer(checkpoint: Path) -> LLTokenizer:
    """Of a ``ByteVocabulary``. A checkpoint without a readable tokenizer.json has no added tokens."""
    added: list[_AddedToken] = []
    with suppress(OSError, msgspec.DecodeError):
        added = msgspec.json.decode((checkpoint / "tokenizer.json").read_bytes(), type=_TokenizerFile).added_tokens
    return LLTokenizer(TokenizerWrapper(ByteVocabulary([token.content for token in added if token.content])))


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
    """The index of a bit that is 1: the first one from a random position on."""
    start = drawn.randrange(bits.bit_length())
    high = bits >> start
    return start + (high & -high).bit_length() - 1


def _message(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().replace("<non-verbose/>", "").split())


def main() -> None:
    """The child. Ends with its stdin, or by SIGALRM if a grammar takes longer than the deadline."""
    # The parent decides when it ends; its own signals reach the whole process group.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    checkpoint, deadline_s = Path(sys.argv[1]), float(sys.argv[2])
    tokenizer = byte_tokenizer(checkpoint)
    _limit_memory(_MEMORY_NBYTES)
    threading.stack_size(_STACK_NBYTES)
    thread = threading.Thread(target=_serve, args=(tokenizer, deadline_s))
    thread.start()
    thread.join()


def _serve(tokenizer: LLTokenizer, deadline_s: float) -> None:
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    with suppress(EOFError, BrokenPipeError):
        write_frame(replies, _READY)
        while True:
            grammar = read_frame(requests).decode()
            signal.setitimer(signal.ITIMER_REAL, deadline_s)
            error = error_of(grammar, tokenizer)
            signal.setitimer(signal.ITIMER_REAL, 0)
            write_frame(replies, error.encode())


def _limit_memory(nbytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard), hard))


if __name__ == "__main__":
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    main()
