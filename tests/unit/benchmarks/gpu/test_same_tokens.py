"""Which answers step 3 of the battery takes for the same."""

from __future__ import annotations

import pytest

from benchmarks.gpu.models.greedy import Answer
from benchmarks.gpu.steps import same_tokens

RIGHT = Answer([5, 6, 7], [-1.0, -2.0, -3.0])


def test_another_token_is_an_error() -> None:
    with pytest.raises(AssertionError, match="prompt 1: token 1 differs, its logprob by"):
        same_tokens._assert_equal([RIGHT, RIGHT], [RIGHT, Answer([5, 9, 7], [-1.0, -1.99, -3.0])])


def test_a_near_tie_ends_the_comparison() -> None:
    other = Answer([5, 9, 1], [-1.0, -2.000005, -8.0])
    same_tokens._assert_equal([RIGHT], [other])
    assert same_tokens._equal_part([RIGHT], [other]) == pytest.approx(1 / 3)
    assert same_tokens._largest_difference([RIGHT], [other]) == pytest.approx(5e-6)


def test_equal_answers() -> None:
    same_tokens._assert_equal([RIGHT], [RIGHT])
    assert same_tokens._equal_part([RIGHT], [RIGHT]) == 1.0
