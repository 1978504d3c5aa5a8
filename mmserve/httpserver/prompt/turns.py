"""Which tokens of a prompt come from which messages. Pure, but for the encoding that is passed in.

A template is a program, so its output alone does not tell. But what it writes for the first messages of a conversation
is usually the beginning of what it writes for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from mmserve.httpserver.conversation import Conversation
from mmserve.httpserver.prompt.guarded_encoding import EncodedText
from mmserve.runtime.errors import InvalidRequest

_MAX_CHARS = 2_000_000
"""Of all prompts that are encoded to tell the messages of one apart: a second of computing."""


class Turn(NamedTuple):
    """Tokens [start, end) of a prompt. ``messages``: the indexes of those that they come from; several, if the template
    writes one differently once another follows; none for what the template adds by itself before or behind them."""

    start: int
    end: int
    messages: range


def turns(
    conversation: Conversation,
    encode: Callable[[Conversation], EncodedText],
    num_tokens: Callable[[Sequence[int]], int],
) -> list[Turn]:
    """All of the prompt in order. ``num_tokens``: of ids from the prompt's beginning, with the rows of their images."""
    whole, count = encode(conversation), len(conversation.messages)
    known = [(0, 0)]
    counts = range(count + 1) if count * len(whole.text) <= _MAX_CHARS else (0, count)
    for first in counts:
        end = _end(replace(conversation, messages=conversation.messages[:first]), whole, encode)
        if end > known[-1][1]:  # a message that adds nothing may be written with the next one
            known.append((first, end))
    places = [(first, num_tokens(whole.ids[:end])) for first, end in known]
    places.append((places[-1][0], num_tokens(whole.ids)))
    if places[-1][0] < count:  # what follows the last known place may be of any of the others
        places[-1] = count, places[-1][1]
    return [
        Turn(start, end, range(before, behind))
        for (before, start), (behind, end) in itertools.pairwise(places)
        if start < end
    ]


def _end(beginning: Conversation, whole: EncodedText, encode: Callable[[Conversation], EncodedText]) -> int:
    """Number of leading ids of ``whole`` that are tokens of ``beginning``; -1 if it cannot be determined."""
    try:
        text, ids = encode(replace(beginning, add_generation_prompt=False, continue_final_message=False))
    except InvalidRequest:
        return -1  # a template may refuse a conversation without a user, or one that a user does not end
    if not text or not whole.text.startswith(text.rstrip()):
        return -1  # the tokenizer's first token alone is of no message
    equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ids, whole.ids, strict=False))
    return sum(1 for _ in equal)
