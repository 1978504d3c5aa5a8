"""Compiles grammars for the served vocabulary in threads, so that no step waits for a compiler.

llguidance releases the interpreter's lock while it compiles. HTTP workers have validated the grammars.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from llguidance import LLMatcher, LLTokenizer

from mmserve.checkpoint.config.tokenizer_json import tokenizer_text
from mmserve.checkpoint.spec import ModelSpec
from mmserve.grammar.limits import parser_limits
from mmserve.runtime.errors import GrammarError

GIVE_UP_S = 10.0
"""A grammar that is not compiled after this time fails. Validation allows less than a second."""
_THREADS = 2
_MAX_KEPT = 32
"""Compiled grammars kept, the most recently used ones. One of 5 KB takes about 0.25 MB."""
_MAX_KEPT_CHARS = 4 << 20
"""Of their texts together."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingMatcher:
    """A matcher that is being made: a compiled grammar, or one sequence's copy of it."""

    future: Future[LLMatcher]
    """May raise GrammarError."""
    give_up_s: float
    """On ``time.monotonic``: when to stop waiting for it."""


class GrammarCompiler:
    """Used by one thread. Reads the tokenizer in another one at the first grammar, which takes up to a second."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._num_threads = 0
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = threading.Lock()
        self._kept: OrderedDict[str, PendingMatcher] = OrderedDict()
        self._kept_chars = 0

    def start(self, grammar: str, output: Sequence[int]) -> PendingMatcher:
        """A matcher of its own for the caller, which has consumed the tokens of ``output``.

        Sequences with equal grammars share one compilation, also while it runs.
        """
        compilation = self._compilation(grammar)
        made: Future[LLMatcher] = Future()
        finish = partial(_finish, made, compilation.future, list(output))
        if output:
            compilation.future.add_done_callback(lambda _: self._submit(finish))
        else:
            compilation.future.add_done_callback(lambda _: finish())
        is_compiled = compilation.future.done()  # perhaps long ago; then only the output is still to be consumed
        return PendingMatcher(made, time.monotonic() + GIVE_UP_S if is_compiled else compilation.give_up_s)

    def _compilation(self, grammar: str) -> PendingMatcher:
        if (kept := self._kept.get(grammar)) is not None:
            self._kept.move_to_end(grammar)
            return kept
        compilation = PendingMatcher(Future(), time.monotonic() + GIVE_UP_S)
        self._kept[grammar] = compilation
        self._kept_chars += len(grammar)
        while len(self._kept) > _MAX_KEPT or self._kept_chars > _MAX_KEPT_CHARS:
            oldest, _ = self._kept.popitem(last=False)
            self._kept_chars -= len(oldest)
        self._submit(partial(self._compile, grammar, compilation.future))
        return compilation

    def _submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._num_threads < _THREADS:
            self._num_threads += 1
            # Daemons: the rank's end does not wait for a compiler.
            threading.Thread(target=_run_jobs, args=(self._jobs,), name="grammar", daemon=True).start()

    def _compile(self, grammar: str, compiled: Future[LLMatcher]) -> None:
        try:
            matcher = LLMatcher(self._loaded_tokenizer(), grammar, log_level=0, limits=parser_limits())
            # Fills caches that its copies share: a first mask takes up to 3 ms, later ones 20 us.
            matcher.compute_bitmask()
            if matcher.is_error():
                raise GrammarError(f"the grammar cannot be compiled: {matcher.get_error()}")
            compiled.set_result(matcher)
        except Exception as error:  # noqa: BLE001 - the boundary of one grammar; the slot's failure is logged
            compiled.set_exception(error)

    def _loaded_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                started_s = time.perf_counter()
                text = tokenizer_text(Path(self._model.path)).decode()
                end = list(self._model.eos_token_ids)
                self._tokenizer = LLTokenizer(text, n_vocab=self._model.text.vocab_size, eos_token=end or None)
                logger.info("read the tokenizer for grammars within %.2f s", time.perf_counter() - started_s)
            return self._tokenizer


def _finish(made: Future[LLMatcher], compiled: Future[LLMatcher], output: list[int]) -> None:
    if not made.set_running_or_notify_cancel():
        return
    try:
        matcher = compiled.result().deep_copy()
        if matcher.try_consume_tokens(output) < len(output):
            raise GrammarError("the tokens that the sequence has already do not fit its grammar")
        made.set_result(matcher)
    except Exception as error:  # noqa: BLE001 - as in _compile
        made.set_exception(error)


def _run_jobs(jobs: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        job = jobs.get()
        job()
        del job  # frees its grammar before waiting for the next one
