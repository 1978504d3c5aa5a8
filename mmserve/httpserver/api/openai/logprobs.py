"""Log-probabilities in OpenAI's JSON form."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.logprobs import LogprobEntry, TokenLogprobs

MIN_LOGPROB = -9999.0
"""OpenAI's value for minus infinity, which JSON lacks."""


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChoiceLogprobs(msgspec.Struct):
    content: list[msgspec.Raw]
    """Each a ContentLogprob, encoded when it arrived. Encoding thousands at the end would block the event loop."""
    refusal: None = None

    def add(self, tokens: Iterable[TokenLogprobs]) -> int:
        """Returns the bytes of JSON that were added."""
        added = [*map(_encoded, tokens)]
        self.content += added
        return sum(len(memoryview(one)) for one in added)


def logprobs_for(call: GenerateCall, tokens: Iterable[TokenLogprobs] = ()) -> ChoiceLogprobs | None:
    """Log-probabilities of ``tokens``; None if the call does not ask for any."""
    return None if call.sampling.logprobs is None else ChoiceLogprobs([*map(_encoded, tokens)])


def _encoded(token: TokenLogprobs) -> msgspec.Raw:
    sampled, top = token.decode()
    entry = ContentLogprob(*_fields(sampled), top_logprobs=[TokenLogprob(*_fields(one)) for one in top])
    return msgspec.Raw(msgspec.json.encode(entry))


def _fields(one: LogprobEntry) -> tuple[str, float, list[int] | None]:
    text, data = one.spelling
    return text, max(one.logprob, MIN_LOGPROB), None if data is None else list(data)
