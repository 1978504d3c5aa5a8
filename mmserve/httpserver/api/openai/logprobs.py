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

    def add(self, tokens: Iterable[TokenLogprobs], *, as_ids: bool = False) -> int:
        """Returns the bytes of JSON that were added. ``as_ids``: see ``logprobs_for``."""
        added = [_encoded(token, as_ids) for token in tokens]
        self.content += added
        return sum(len(memoryview(one)) for one in added)


def logprobs_for(
    call: GenerateCall, tokens: Iterable[TokenLogprobs] = (), *, as_ids: bool = False
) -> ChoiceLogprobs | None:
    """Log-probabilities of ``tokens``; None if the call does not ask for any. ``as_ids``: ``token`` is ``token_id:N``,
    which tells tokens with the same text apart."""
    return None if call.sampling.logprobs is None else ChoiceLogprobs([_encoded(token, as_ids) for token in tokens])


def _encoded(token: TokenLogprobs, as_ids: bool) -> msgspec.Raw:
    sampled, top = token.decode()
    entry = ContentLogprob(*_fields(sampled, as_ids), top_logprobs=[TokenLogprob(*_fields(one, as_ids)) for one in top])
    return msgspec.Raw(msgspec.json.encode(entry))


def _fields(one: LogprobEntry, as_ids: bool) -> tuple[str, float, list[int] | None]:
    text, data = one.spelling
    if as_ids:
        text = f"token_id:{one.token_id}"
    return text, max(one.logprob, MIN_LOGPROB), None if data is None else list(data)
