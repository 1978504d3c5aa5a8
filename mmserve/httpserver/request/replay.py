"""Goes on with an answer that another server has begun: makes its deltas again from its tokens, then the rest.

Text, tool calls and log-probabilities depend on the tokens of each delta alone, so the response makes the same events
again. Those that the client has are not sent (``api.response``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from mmserve.httpserver.request.choice import Choice
from mmserve.messages.relay import Sampled
from mmserve.messages.reply import TokenReply
from mmserve.runtime.errors import InvalidRequest


def replayed(choices: Sequence[Choice], sampled: Sequence[Sampled]) -> list[Choice]:
    """Push the deltas of ``sampled``, in order. Returns the choices that have not finished, to go on from there.

    Raises InvalidRequest if the tokens are not of this request.
    """
    outputs = [array("q") for _ in choices]
    finished = set()
    for each in sampled:
        if not 0 <= each.index < len(choices) or each.index in finished:
            raise InvalidRequest("the tokens that came with the request are not of an answer to it")
        choice = choices[each.index]
        reply = TokenReply(
            id=choice.request.id,
            token_ids=each.token_ids,
            logprobs=each.logprobs,
            finish=each.finish,
            num_cached_tokens=each.num_cached_tokens,
        )
        delta = choice.text.push(reply)
        choice.deltas.push(replace(delta, sampled=each, replayed=True))
        outputs[each.index].extend(each.token_ids)
        if delta.finish is not None:
            finished.add(each.index)
    return [
        replace(choice, request=msgspec.structs.replace(choice.request, output_ids=outputs[index].tobytes()))
        for index, choice in enumerate(choices)
        if index not in finished
    ]
