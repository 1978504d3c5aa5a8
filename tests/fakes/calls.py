"""GenerateCalls for tests: one builder with a default for every field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mmserve.httpserver.call import GenerateCall, Message
from mmserve.messages.sampling import SamplingParams


def generate_call(*messages: Message, **fields: Any) -> GenerateCall:
    """A validated request for 4 greedy tokens of the model ``stub``, as a protocol's ``parse`` returns it.

    ``fields``: any fields of GenerateCall, in place of the defaults. ``media`` must have a MediaRef for each MediaPart
    of the messages.
    """
    sampling = SamplingParams(max_tokens=4, temperature=0)
    call = GenerateCall("request", "stub", messages, media=(), sampling=sampling, arrival_s=0.0)
    return replace(call, **fields)
