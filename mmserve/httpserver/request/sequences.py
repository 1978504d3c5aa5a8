"""The sequences that a call asks the engine for, from its built prompts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mmserve.httpserver.call import GenerateCall, Prompt
from mmserve.httpserver.request.named import NOTHING, named_in
from mmserve.messages.request import GenerateRequest, choice_id
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import ContextLengthExceeded, quoted


def sequences_of(
    call: GenerateCall, prompts: Sequence[Prompt], worker: int, max_model_len: int, arena_s: float = 0.0
) -> list[GenerateRequest]:
    """n sequences of the first prompt, n of the second, and so on. ``worker``: the HTTP worker that gets the replies.
    ``arena_s``: how long the call's pictures waited for room in the arena.

    Raises ContextLengthExceeded if a prompt and its answer do not fit ``max_model_len`` tokens.
    """
    return [
        sequence
        for number, prompt in enumerate(prompts)
        for sequence in _of_prompt(call, prompt, number * call.n, worker, max_model_len, arena_s)
    ]


def _of_prompt(
    call: GenerateCall, prompt: Prompt, first: int, worker: int, max_model_len: int, arena_s: float
) -> list[GenerateRequest]:
    """The sequences of one prompt's choices. ``first``: index of the first of them."""
    sampling = _with_token_limits(call, len(prompt.ids), max_model_len)
    prompt_ids = prompt.ids.tobytes()
    named = NOTHING if call.relayed is None or first else named_in(call.relayed.relay, prompt)
    return [
        GenerateRequest(
            id=choice_id(call.request_id, first + index),
            reply_to=worker,
            prompt_ids=prompt_ids,
            spans=prompt.spans,
            sampling=msgspec.structs.replace(
                sampling,
                seed=(sampling.seed + index) % (1 << 63),
                prompt_logprobs=sampling.prompt_logprobs if call.echo or not index else None,
            ),
            cache_salt=call.cache_salt,
            pooling=call.pooling,
            priority=call.priority,
            arrival_s=call.arrival_s,
            arena_s=arena_s,
            pictures=() if index else named.pictures,
            beginnings=() if index else named.beginnings,
        )
        for index in range(call.n)
    ]


def _with_token_limits(call: GenerateCall, prompt_tokens: int, max_model_len: int) -> SamplingParams:
    """Set max_tokens to the rest of the context if it is 0 or may be cut, and to 0 if no answer is wanted."""
    sampling, room = call.sampling, max_model_len - prompt_tokens
    if call.prompt_only and room >= 0:
        return msgspec.structs.replace(sampling, max_tokens=0, min_tokens=0)
    if call.fit_output and room > 0:
        sampling = msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens or room, room))
    if room < max(1, sampling.max_tokens):
        output = f" and {quoted(sampling.max_tokens)} of output" if sampling.max_tokens else ""
        raise ContextLengthExceeded(
            f"{prompt_tokens} prompt tokens{output} do not fit the context of {max_model_len} tokens",
            param="max_tokens" if room > 0 else "messages",
            prompt_tokens=prompt_tokens if room <= 0 else None,
            max_prompt_tokens=max_model_len - 1,
        )
    max_tokens = sampling.max_tokens or room
    return msgspec.structs.replace(sampling, max_tokens=max_tokens, min_tokens=min(sampling.min_tokens, max_tokens))
