"""One answer, read from the response of chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmserve.client.completions import ServerError, refusal
from mmserve.runtime.patience import Reply


@dataclass(frozen=True)
class Answer:
    """``usage``: tokens, as the protocol counts them. ``seconds``: from the sending of the request to the end.

    ``error``: why there is no answer, among several of which others have one. ``response``: the server's whole JSON,
    with further choices, log-probabilities and the like; empty for a streamed answer.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    finish_reason: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None
    response: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return self.text


def read_answer(reply: Reply, seconds: float) -> Answer:
    """Raises ServerError for a response that is no answer."""
    if reply.status != 200:
        raise ServerError(refusal(reply.status, reply.content))
    try:
        response = json.loads(reply.content)
        choice = response["choices"][0]
        message = choice["message"]
    except (ValueError, LookupError, TypeError):
        raise ServerError("the server's response is no chat completion") from None
    return Answer(
        text=message.get("content") or message.get("refusal") or "",
        reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
        tool_calls=message.get("tool_calls") or (),
        finish_reason=choice.get("finish_reason") or "",
        usage=response.get("usage") or {},
        seconds=seconds,
        response=response,
    )
