"""Steps that cannot be computed together are computed in parts; only the sequence at fault fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mmserve.messages.step import SequenceStep
from mmserve.model_backend.worker.step_splitting import Cut, StepError, compute_in_parts

ERROR, MEMORY = StepError("broken"), StepError("no memory", out_of_memory=True)
Fails = Callable[[Sequence[SequenceStep]], StepError | None]


def decodes(count: int) -> list[SequenceStep]:
    return [SequenceStep(slot, 10, 1, (), True) for slot in range(count)]


def compute(
    steps: Sequence[SequenceStep], fails: Fails, cut: Cut = lambda step, num_tokens: num_tokens
) -> tuple[dict[int, str], list[StepError], list[Sequence[SequenceStep]]]:
    """Failures, errors, and the parts that were computed."""
    parts: list[Sequence[SequenceStep]] = []

    def attempt(part: Sequence[SequenceStep]) -> StepError | None:
        error = fails(part)
        if error is None:
            parts.append(part)
        return error

    return *compute_in_parts(steps, attempt, cut), parts


def test_steps_without_an_error_are_computed_at_once() -> None:
    steps = decodes(5)
    assert compute(steps, lambda part: None) == ({}, [], [steps])


@pytest.mark.parametrize("bad", [{0}, {4}, {2, 3}, {0, 1, 2, 3, 4}])
def test_only_sequences_at_fault_fail(bad: set[int]) -> None:
    failed, _, parts = compute(decodes(5), lambda part: ERROR if bad & {step.slot for step in part} else None)
    assert failed == dict.fromkeys(bad, "broken")
    assert [step.slot for part in parts for step in part] == sorted(set(range(5)) - bad)


def test_an_error_costs_few_attempts() -> None:
    failed, errors, parts = compute(decodes(256), lambda part: ERROR if any(step.slot == 77 for step in part) else None)
    assert list(failed) == [77]
    assert (len(errors), len(parts)) == (9, 8)


def test_steps_that_are_too_large_are_computed_in_smaller_parts_in_their_order() -> None:
    steps = [*decodes(3), SequenceStep(3, 0, 21, (1, 2), False), SequenceStep(4, 5, 20, (3,), True)]

    def fails(part: Sequence[SequenceStep]) -> StepError | None:
        return MEMORY if sum(step.num_tokens for step in part) > 6 else None

    failed, _, parts = compute(steps, fails)
    assert not failed
    computed = [step for part in parts for step in part]
    assert [(step.slot, step.start) for step in computed] == sorted((step.slot, step.start) for step in computed)
    for step in steps:
        own = [each for each in computed if each.slot == step.slot]
        assert [each.start for each in own] == [
            step.start + sum(e.num_tokens for e in own[:i]) for i in range(len(own))
        ]
        assert sum(each.num_tokens for each in own) == step.num_tokens
        assert [each.sample for each in own] == [False] * (len(own) - 1) + [step.sample]


def test_a_sequence_of_which_one_token_is_too_much_fails_and_the_rest_of_its_chunk_is_not_tried() -> None:
    steps = [SequenceStep(0, 0, 8, (1,), True), *decodes(3)[1:]]
    failed, _, parts = compute(steps, lambda part: MEMORY if part[0].slot == 0 else None)
    assert failed == {0: "no memory"}
    assert [step.slot for part in parts for step in part] == [1, 2]


@pytest.mark.parametrize("limit", [8, 20])
def test_chunks_are_cut_only_where_they_may_be(limit: int) -> None:
    """Here after multiples of ten tokens; a part of ten that is still too large fails alone."""

    def cut(step: SequenceStep, num_tokens: int) -> int:
        return num_tokens // 10 * 10

    def fails(part: Sequence[SequenceStep]) -> StepError | None:
        return MEMORY if sum(step.num_tokens for step in part) > limit else None

    steps = [*decodes(2), SequenceStep(2, 0, 40, (1,), True), SequenceStep(3, 0, 10, (2,), True)]
    failed, _, parts = compute(steps, fails, cut)
    computed = [(step.slot, step.start, step.num_tokens) for part in parts for step in part]
    assert list(failed) == ([] if limit == 20 else [2, 3])
    assert computed[:2] == [(0, 10, 1), (1, 10, 1)]
    assert all(start % 10 == 0 and count % 10 == 0 for _, start, count in computed[2:])
    assert sum(count for _, _, count in computed[2:]) == (50 if limit == 20 else 0)


@pytest.mark.parametrize("error", [ERROR, MEMORY])
def test_drafts_are_left_out_before_a_part_is_split(error: StepError) -> None:
    steps = [SequenceStep(0, 10, 1, (), True, draft=(1, 2)), *decodes(3)[1:]]
    failed, errors, parts = compute(steps, lambda part: error if any(step.draft for step in part) else None)
    assert not failed
    assert (errors, parts) == ([error], [decodes(3)])
