"""Log-probabilities of a prompt's tokens in vLLM's JSON form: an object for each token, null for those without any."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mmserve.httpserver.api.openai.logprobs import MIN_LOGPROB
from mmserve.httpserver.output.logprobs import TokenLogprobs

RAW_NBYTES = 120
"""Of the object that holds one token's log-probabilities as JSON."""


class PromptToken(msgspec.Struct):
    """``rank``: 1 for the most likely token; null for the prompt's own token if it is not among the top ones."""

    logprob: float
    rank: int | None
    decoded_token: str


def encoded_prompt_logprobs(tokens: Iterable[TokenLogprobs | None]) -> list[msgspec.Raw]:
    """JSON of each token: {token id: PromptToken} for itself and for the top tokens."""
    return [msgspec.Raw(b"null" if token is None else msgspec.json.encode(_entries(token))) for token in tokens]


def _entries(token: TokenLogprobs) -> dict[int, PromptToken]:
    own, top = token.decode()
    entries = {own.token_id: PromptToken(max(own.logprob, MIN_LOGPROB), None, own.spelling.text)}
    for rank, one in enumerate(top, start=1):
        entries[one.token_id] = PromptToken(max(one.logprob, MIN_LOGPROB), rank, one.spelling.text)
    return entries
