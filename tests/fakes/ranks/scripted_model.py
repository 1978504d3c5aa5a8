"""A model that says what a script tells it, so far as the request's grammar allows, and otherwise ends soon.

With it a required call or a schema passes end to end although nothing was trained: the real grammar decides each token.
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import Callable, Sequence

import llguidance.numpy as bitmasks
import tokenizers
from llguidance import LLMatcher

from mmserve.checkpoint.spec import ModelSpec
from mmserve.messages.logprobs import NO_TOKEN, pack
from mmserve.messages.request import GenerateRequest
from mmserve.model_backend.worker.sampling.grammar_compiler import GrammarCompiler
from tests.fakes.http.http_upstream import Upstream, likely

Script = Callable[[str], str]
"""The answer to a prompt, both as text with special tokens."""
_IN_STRING = ('"',)
_OUTSIDE = ("}", "]", '"', "0", "e", "l")
"""What to write first where the script does not fit: whatever closes, then the shortest values (``0``, ``true``)."""


class ScriptedModel:
    """Answers every request of an Upstream by ``script``. Used from one event loop."""

    def __init__(self, model: ModelSpec, tokenizer: tokenizers.Tokenizer, script: Script) -> None:
        self._tokenizer = tokenizer
        self._script = script
        self._compiler = GrammarCompiler(model)
        self._vocab_size = model.text.vocab_size

    async def behave(self, upstream: Upstream, request: GenerateRequest) -> None:
        prompt = array("q", request.prompt_ids)
        if (top := request.sampling.prompt_logprobs) is not None:
            rows = (self._prompt_row(token, top) for token in prompt[1 + request.num_prompt_logprobs :])
            upstream.reply(request, prompt_logprobs=b"".join(rows))
        known = [token for token in prompt if token < self._vocab_size]
        scripted = self._encode(self._script(self._tokenizer.decode(known, skip_special_tokens=False)))
        if request.sampling.grammar:
            pending = self._compiler.start(request.sampling.grammar, ())
            matcher = await asyncio.wrap_future(pending.future)
            tokens = self._walk(matcher, scripted, request)
        else:
            tokens = [*scripted, *request.sampling.eos_token_ids[:1]]
        spoken = tokens[len(array("q", request.output_ids)) : request.sampling.max_tokens]
        for token in spoken[:-1]:
            upstream.reply(request, [token])
            await asyncio.sleep(0)
        cut = len(tokens) > request.sampling.max_tokens
        upstream.reply(request, spoken[-1:], finish="length" if cut else "stop")

    def _prompt_row(self, token: int, top: int) -> bytes:
        """The log-probabilities of a prompt's token; an image's has none."""
        return likely(token, top) if token < self._vocab_size else pack([(NO_TOKEN, 0.0)] * (1 + top))

    def _walk(self, matcher: LLMatcher, scripted: Sequence[int], request: GenerateRequest) -> list[int]:
        """The grammar's answer: the script's tokens while they fit, and the end as early as it is allowed."""
        tokens: list[int] = []
        rest = iter(scripted)
        on_script = True
        mask = bitmasks.allocate_token_bitmask(1, self._vocab_size)
        while len(tokens) <= request.sampling.max_tokens and not matcher.is_stopped():
            bitmasks.fill_next_token_bitmask(matcher, mask, 0)
            allowed = _Allowed(mask[0])
            wanted = next(rest, None) if on_script else None
            on_script = wanted is not None and wanted in allowed
            token = wanted if on_script else self._closing(allowed, tokens, request)
            assert token is not None
            tokens.append(token)
            assert matcher.consume_token(token), matcher.get_error()
        return tokens

    def _closing(self, allowed: _Allowed, tokens: list[int], request: GenerateRequest) -> int:
        """The allowed token that brings the end nearest."""
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        in_string = text.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 1
        first = [self._tokenizer.token_to_id(character) for character in (_IN_STRING if in_string else _OUTSIDE)]
        for token in itertools.chain(request.sampling.eos_token_ids, first, range(self._vocab_size)):
            if token is not None and token in allowed:
                return token
        raise AssertionError("the grammar allows no token")

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


class _Allowed:
    """A row of a token mask: 32 tokens a word, the lowest bit first."""

    def __init__(self, row: Sequence[int]) -> None:
        self._row = row

    def __contains__(self, token: int) -> bool:
        return bool(int(self._row[token // 32]) >> (token % 32) & 1)
