"""Computes the steps of a plan in smaller parts when they cannot be computed together.

After an error drafts are left out first, so that each sequence gets one token. Then the halves of a part are tried,
until the sequence at fault is alone. When memory ran out, a part is cut in the middle of its tokens, in a chunk if need
be, so that all of it is computed. A chunk of a model that reads whole images is cut beside them. Pure: no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from mmserve.messages.step import SequenceStep


class StepError(NamedTuple):
    """Why a part could not be computed. Does not refer to the exception, whose traceback would keep tensors alive."""

    message: str
    out_of_memory: bool = False


Attempt = Callable[[Sequence[SequenceStep]], StepError | None]
"""Computes steps; on an error it leaves no trace but their keys and values, which the next attempt overwrites. All
ranks get the same error or none."""


Cut = Callable[[SequenceStep, int], int]
"""(step, a number of its tokens) -> the number after which it may be cut instead; 0 or all of them: nowhere near."""


def compute_in_parts(
    steps: Sequence[SequenceStep], attempt: Attempt, cut: Cut = lambda step, num_tokens: num_tokens
) -> tuple[dict[int, str], list[StepError]]:
    """Computes the steps (at least one), in as few parts as possible, each before those after it in the plan.

    The order matters because a step may read blocks that an earlier one fills. Returns the slots that failed, with
    messages, and all errors. Several ranks that get the same errors make the same attempts.
    """
    failed: dict[int, str] = {}
    errors: list[StepError] = []
    stack: list[Sequence[SequenceStep]] = [steps]
    while stack:
        part = [step for step in stack.pop() if step.slot not in failed]
        if not part or (error := attempt(part)) is None:
            continue
        errors.append(error)
        if any(step.draft for step in part):
            stack.append([_without_draft(step) for step in part])
        elif halves := _halves_of_tokens(part, cut) if error.out_of_memory else _halves(part):
            stack += reversed(halves)
        else:
            failed[part[0].slot] = error.message
    return failed, errors


def _without_draft(step: SequenceStep) -> SequenceStep:
    return msgspec.structs.replace(step, draft=())


def _halves(part: Sequence[SequenceStep]) -> list[Sequence[SequenceStep]]:
    """Both halves of the steps; none of a single step."""
    middle = len(part) // 2
    return [part[:middle], part[middle:]] if middle else []


def _halves_of_tokens(part: Sequence[SequenceStep], cut: Cut) -> list[Sequence[SequenceStep]]:
    """Two parts with about half of the tokens each, where the chunk in the middle is cut; none of a single token.

    ``_halves`` if the chunk cannot be cut and one of the parts would be empty.
    """
    num_tokens = sum(step.num_tokens for step in part) // 2
    if not num_tokens:
        return []
    first: list[SequenceStep] = []
    for index, step in enumerate(part):
        if step.num_tokens > num_tokens:
            head, tail = _cut(step, cut(step, num_tokens))
            parts: list[Sequence[SequenceStep]] = [[*first, *head], [*tail, *part[index + 1 :]]]
            return parts if all(parts) else _halves(part)
        first.append(step)
        num_tokens -= step.num_tokens
    raise AssertionError("a half has fewer tokens than the whole")


def _cut(step: SequenceStep, num_tokens: int) -> tuple[list[SequenceStep], list[SequenceStep]]:
    """The step's first ``num_tokens`` tokens and the others. The slot has its new blocks already."""
    if not 0 < num_tokens < step.num_tokens:
        return ([step], []) if num_tokens else ([], [step])
    head = SequenceStep(step.slot, step.start, num_tokens, (), False)
    tail = SequenceStep(step.slot, step.start + num_tokens, step.num_tokens - num_tokens, (), step.sample)
    return [head], [tail]
