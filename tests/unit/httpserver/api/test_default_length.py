"""How long an answer may be where the request does not say it: max_new_tokens of generation_config.json."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from typing import Any

import pytest

from mmserve.httpserver.api.protocol import parse_body
from mmserve.httpserver.call import Prompt
from mmserve.httpserver.request.sequences import sequences_of
from mmserve.httpserver.sampling_defaults import SamplingDefaults
from mmserve.runtime.errors import ContextLengthExceeded
from tests.unit.httpserver.api.test_malformed_bodies import ALL, GOOD, MODEL

FIELDS = {"chat_completions": ("max_completion_tokens", "max_tokens"), "responses": ("max_output_tokens",)}
CONTEXT, PROMPT = 100, 60


def longest_answer(protocol: str, default: int, fields: dict[str, Any]) -> int:
    """Of a sequence that the engine gets."""
    model = replace(MODEL, sampling_defaults=SamplingDefaults(max_tokens=default))
    body = {"model": "stub"} | GOOD[protocol] | fields
    call = parse_body(ALL[protocol], json.dumps(body).encode(), model, 0.0).call
    (sequence,) = sequences_of(call, [Prompt(array("q", range(PROMPT)))], 0, CONTEXT)
    return sequence.sampling.max_tokens


@pytest.mark.parametrize("protocol", FIELDS)
def test_the_checkpoints_length_is_the_default_and_gives_way_to_request_and_context(protocol: str) -> None:
    room = CONTEXT - PROMPT
    assert [longest_answer(protocol, default, {}) for default in (0, 7, room, room + 1)] == [room, 7, room, room]
    for field in FIELDS[protocol]:
        assert longest_answer(protocol, 7, {field: 9}) == 9
        with pytest.raises(ContextLengthExceeded):
            longest_answer(protocol, 7, {field: room + 1})
