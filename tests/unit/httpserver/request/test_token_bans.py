"""Requests whose bans leave no token: what is certain before the engine is asked, and what the error names."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.httpserver.request.token_bans import check_a_token_is_left, no_token_allowed
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import NoTokenAllowed


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=4, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": (1, 2), "bad_words": ((1,), (2,))},
        {"allowed_token_ids": (7, 1), "bad_words": ((1,),), "eos_token_ids": (7,), "min_tokens": 1},
        {"allowed_token_ids": (7, 8), "eos_token_ids": (7,), "stop_token_ids": (8,), "min_tokens": 2},
    ],
)
def test_an_answer_without_a_first_token_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(NoTokenAllowed) as refused:
        check_a_token_is_left(params(**fields))
    assert (refused.value.status, refused.value.param) == (400, "allowed_token_ids")


@pytest.mark.parametrize(
    "fields",
    [
        {"bad_words": ((1,), (2,))},
        {"allowed_token_ids": (1, 2), "bad_words": ((1,), (2, 3))},
        {"allowed_token_ids": (7,), "eos_token_ids": (7,)},
        {"allowed_token_ids": (7, 1), "eos_token_ids": (7,), "min_tokens": 1},
        {"allowed_token_ids": (1,), "logit_bias": {1: -100.0}},
    ],
)
def test_others_are_left_to_the_engine(fields: dict[str, Any]) -> None:
    check_a_token_is_left(params(**fields))


@pytest.mark.parametrize(
    ("fields", "param", "names"),
    [
        ({"bad_words": ((1, 2),), "grammar": "g"}, "bad_words", "bad_words and response_format together"),
        ({"allowed_token_ids": (1,), "min_tokens": 1}, "allowed_token_ids", ": allowed_token_ids ban"),
        ({"allowed_token_ids": (1,), "min_tokens": 1, "eos_token_ids": (1,)}, "allowed_token_ids", "and min_tokens"),
        ({"grammar": "g"}, "response_format", ": response_format ban"),
        ({}, None, "the request ban"),
    ],
)
def test_the_error_names_what_bans(fields: dict[str, Any], param: str | None, names: str) -> None:
    error = no_token_allowed(params(**fields), "response_format")
    assert error.param == param
    assert names in error.message
