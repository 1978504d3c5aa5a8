"""Log-probabilities in the form of OpenAI's completions: parallel lists, with offsets into the choice's text."""

from __future__ import annotations

import msgspec

from mmserve.httpserver.api.openai.logprobs import MIN_LOGPROB
from mmserve.httpserver.output.echoed_prompt import EchoedToken
from mmserve.httpserver.output.logprobs import TokenLogprobs
from mmserve.httpserver.output.vocabulary import REPLACEMENT, Spelling

_NULL = msgspec.Raw(b"null")
_TOKEN_NBYTES = 240
"""Objects of one token in the four lists, besides its top tokens and its name."""


class ListedLogprobs(msgspec.Struct):
    """One entry a token in each list. The first token of an echoed prompt has null for its log-probabilities."""

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[msgspec.Raw] = []
    """Each an object from token to log-probability, encoded when it arrived: encoding thousands at the end would block
    the event loop."""

    def add(self, token: TokenLogprobs, offset: int, *, as_ids: bool = False) -> None:
        """``as_ids``: tokens are named by their ids."""
        sampled, top = token.decode()
        name, logprob = _name(sampled.spelling, sampled.token_id, as_ids), max(sampled.logprob, MIN_LOGPROB)
        by_name: dict[str, float] = {}
        for one in top:
            by_name.setdefault(_name(one.spelling, one.token_id, as_ids), max(one.logprob, MIN_LOGPROB))
        by_name.setdefault(name, logprob)
        self._add(name, logprob, msgspec.Raw(msgspec.json.encode(by_name)), offset)

    def add_unscored(self, token: EchoedToken, *, as_ids: bool = False) -> None:
        """The first token of a prompt: nothing comes before it, so it has no log-probability."""
        self._add(_name(token.spelling, token.token_id, as_ids), None, _NULL, token.start)

    def extend(self, other: ListedLogprobs) -> int:
        """Returns the bytes of memory that the entries of ``other`` take."""
        self.text_offset += other.text_offset
        self.token_logprobs += other.token_logprobs
        self.tokens += other.tokens
        self.top_logprobs += other.top_logprobs
        texts = sum(len(memoryview(top)) for top in other.top_logprobs) + sum(map(len, other.tokens))
        return texts + _TOKEN_NBYTES * len(other.tokens)

    def _add(self, name: str, logprob: float | None, top: msgspec.Raw, offset: int) -> None:
        self.text_offset.append(offset)
        self.token_logprobs.append(logprob)
        self.tokens.append(name)
        self.top_logprobs.append(top)


def _name(spelling: Spelling, token_id: int, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else token_name(spelling)


def token_name(spelling: Spelling) -> str:
    """The token's text, or ``bytes:`` and its bytes if they are no whole characters, so that no two have one name."""
    text, data = spelling
    if data is None or REPLACEMENT not in text or text.encode() == data:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
