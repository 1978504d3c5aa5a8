"""Log-probabilities as OpenAI writes them. Knows no requests."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.logprobs import LogprobEntry, TokenLogprobs

_VERY_UNLIKELY = -9999.0
"""OpenAI's least value. JSON has no infinity."""


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChoiceLogprobs(msgspec.Struct):
    content: list[msgspec.Raw]
    """Each a ContentLogprob, encoded when it came: an answer has thousands, which would be much to do at once."""
    refusal: None = None

    def add(self, tokens: Iterable[TokenLogprobs]) -> None:
        self.content += map(_encoded, tokens)


def logprobs_for(call: GenerateCall, tokens: Iterable[TokenLogprobs] = ()) -> ChoiceLogprobs | None:
    """None unless the call asks for any."""
    return None if call.sampling.logprobs is None else ChoiceLogprobs([*map(_encoded, tokens)])


def _encoded(token: TokenLogprobs) -> msgspec.Raw:
    sampled, top = token.decode()
    entry = ContentLogprob(*_fields(sampled), top_logprobs=[TokenLogprob(*_fields(one)) for one in top])
    return msgspec.Raw(msgspec.json.encode(entry))


def _fields(one: LogprobEntry) -> tuple[str, float, list[int] | None]:
    text, data = one.spelling
    return text, max(one.logprob, _VERY_UNLIKELY), None if data is None else list(data)
