"""Finds out, before a request takes anything else, whether the engine can follow the request's grammar."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import OrderedDict
from typing import Protocol

import msgspec

from mmserve.grammar.isolated import IsolatedValidator
from mmserve.grammar.limits import MAX_GRAMMAR_CHARS
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import InvalidRequest, Overloaded
from mmserve.runtime.worker_threads import WorkerThreads

_NUM_VALIDATORS = 2
"""So that one grammar that takes long does not delay the others. Each is a process of 25 MB, once it is needed."""
_QUEUE_TIMEOUT_S = 5.0
_KEPT_NBYTES = 1 * MIB
_ENTRY_NBYTES = 200


class Validator(Protocol):
    """Implemented by grammar.isolated.IsolatedValidator."""

    def error_of(self, grammar: str) -> str: ...
    def close(self) -> None: ...


class GrammarChecks:
    """Validates grammars in threads, and remembers the results by the grammars' hashes. Used from one event loop."""

    def __init__(self, validators: list[Validator]) -> None:
        self._validators = validators
        self._idle = list(validators)
        self._turns = asyncio.Semaphore(len(validators))
        self._threads = WorkerThreads("grammar", len(validators))
        self._errors: OrderedDict[bytes, str] = OrderedDict()
        self._kept_nbytes = 0

    @classmethod
    def of_checkpoint(cls, checkpoint: str) -> GrammarChecks:
        """With a validator process of its own for each of a few grammars at a time, none of them started yet."""
        return cls([IsolatedValidator(checkpoint) for _ in range(_NUM_VALIDATORS)])

    async def check(self, grammar: str, param: str) -> None:
        """Raises InvalidRequest, which names ``param``, if the grammar cannot be used, and Overloaded if too many are
        being validated."""
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(f"{param} is longer than {MAX_GRAMMAR_CHARS} characters", param=param)
        key = hashlib.sha256(grammar.encode()).digest()
        error = self._known(key)
        if error is None:
            error = await self._validate(key, grammar)
        if error:
            raise InvalidRequest(f"{param} cannot be used: {error}", param=param)

    def close(self) -> None:
        """End the validators, also those that work."""
        self._threads.close()
        for validator in self._validators:
            validator.close()

    async def _validate(self, key: bytes, grammar: str) -> str:
        try:
            await asyncio.wait_for(self._turns.acquire(), _QUEUE_TIMEOUT_S)
        except TimeoutError:
            raise Overloaded("too many grammars are being validated", retry_after_s=5.0) from None
        try:
            if (error := self._known(key)) is not None:
                return error  # an equal one was validated meanwhile
            validator = self._idle.pop()
            try:
                error = await self._threads.run(lambda: validator.error_of(grammar))
            finally:
                self._idle.append(validator)
            self._keep(key, error)
            return error
        finally:
            self._turns.release()

    def _known(self, key: bytes) -> str | None:
        if (error := self._errors.get(key)) is not None:
            self._errors.move_to_end(key)
        return error

    def _keep(self, key: bytes, error: str) -> None:
        self._errors[key] = error
        self._kept_nbytes += _ENTRY_NBYTES + sys.getsizeof(error)
        while self._kept_nbytes > _KEPT_NBYTES:
            _, oldest = self._errors.popitem(last=False)
            self._kept_nbytes -= _ENTRY_NBYTES + sys.getsizeof(oldest)


def constrained(sampling: SamplingParams, grammar: str, eos_token_ids: tuple[int, ...], param: str) -> SamplingParams:
    """The parameters of an answer that must fit the grammar; unchanged without one.

    The grammar decides where the answer ends, so ``min_tokens`` and ``ignore_eos`` have no effect. Raises
    InvalidRequest if the model has no token that ends an answer.
    """
    if not grammar:
        return sampling
    if not eos_token_ids:
        raise InvalidRequest(f"{param} needs a model with an end-of-sequence token", param=param)
    return msgspec.structs.replace(sampling, grammar=grammar, min_tokens=0, eos_token_ids=eos_token_ids)
