"""SamplingParams from the fields that OpenAI's protocols share, the checkpoint's defaults and the server's seed."""

from __future__ import annotations

import secrets
from typing import TypeVar

from mmserve.config.fields import MAX_SEED
from mmserve.httpserver.api.openai.fields import MAX_BIASED_TOKENS, ChatRequest, SamplingFields
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import InvalidRequest, quoted

T = TypeVar("T")


def sampling_params(
    fields: SamplingFields, model: ServedModel, *, max_tokens: int, logprobs: int | None
) -> SamplingParams:
    """The parameters of a request. Fields that it leaves out are the model's defaults. Raises InvalidRequest.

    ``max_tokens`` (0: the rest of the context) and ``logprobs`` (see SamplingParams) are parameters here, because each
    protocol has other fields for them.
    """
    defaults = model.sampling_defaults
    temperature = _or_default(fields.temperature, defaults.temperature)
    min_tokens = fields.min_tokens or 0
    if max_tokens and min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens {quoted(min_tokens)} is more than max_tokens {quoted(max_tokens)}", param="min_tokens"
        )
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=_or_default(fields.top_p, defaults.top_p),
        top_k=max(0, _or_default(fields.top_k, defaults.top_k)),
        min_p=_or_default(fields.min_p, defaults.min_p),
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=_or_default(fields.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(fields, model.vocab_size),
        seed=_seed(fields.seed, model.seed, temperature),
        eos_token_ids=() if fields.ignore_eos else model.eos_token_ids,
        stop_token_ids=_known_tokens(fields.stop_token_ids, "stop_token_ids", model.vocab_size),
        allowed_token_ids=_known_tokens(fields.allowed_token_ids, "allowed_token_ids", model.vocab_size),
        logprobs=logprobs,
    )


def requested_logprobs(request: ChatRequest) -> int | None:
    """SamplingParams.logprobs of a chat completion. Raises InvalidRequest."""
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("logprobs must be true for top_logprobs", param="top_logprobs")
    return request.top_logprobs or 0 if request.logprobs else None


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value


def _seed(seed: int | None, server_seed: int, temperature: float) -> int:
    """The client's seed, or else the server's mixed with random bits, so that equal requests may differ."""
    if seed is not None:
        return seed & MAX_SEED
    return server_seed if temperature == 0 else server_seed ^ secrets.randbits(63)


def _known_tokens(token_ids: list[int] | None, param: str, vocab_size: int) -> tuple[int, ...]:
    """The ids without repetitions. Raises InvalidRequest for those that the model does not have."""
    for index, token_id in enumerate(token_ids or ()):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"token id {quoted(token_id)} is not in the vocabulary", param=f"{param}[{index}]")
    return tuple(dict.fromkeys(token_ids or ()))


def _logit_bias(fields: SamplingFields, vocab_size: int) -> dict[int, float]:
    if len(fields.logit_bias or ()) > MAX_BIASED_TOKENS:
        raise InvalidRequest(f"logit_bias may have {MAX_BIASED_TOKENS} entries", param="logit_bias")
    for token_id in fields.logit_bias or {}:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"token id {quoted(token_id)} is not in the vocabulary", param="logit_bias")
    return fields.logit_bias or {}
