"""Plans as a router makes them before it has a single result, and a rank that computes them."""

from __future__ import annotations

from array import array
from collections import deque

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, SequenceStep, StepPlan, StepResult
from mmserve.model_backend.worker.model_runner import InFlight, ModelRunner

PROMPTS = [list(range(10, 40)), [7, 8, 9]]


def plans(num_decodes: int, sampling: SamplingParams) -> list[StepPlan]:
    """Prefill of all prompts, then decode steps, as a router makes them without a single result."""
    new = [
        NewSequence(
            slot=slot,
            token_ids=array("q", prompt).tobytes(),
            num_prompt_tokens=len(prompt),
            spans=(),
            sampling=sampling,
        )
        for slot, prompt in enumerate(PROMPTS)
    ]
    made = [StepPlan(step_id=0, new=tuple(new), steps=tuple(steps_at(0)))]
    return made + [StepPlan(step_id=number, steps=tuple(steps_at(number))) for number in range(1, num_decodes + 1)]


def steps_at(number: int) -> list[SequenceStep]:
    steps = []
    for slot, prompt in enumerate(PROMPTS):
        start = len(prompt) + number - 1 if number else 0
        num_tokens = 1 if number else len(prompt)
        blocks = tuple(10 * slot + index for index in range(4)) if not number else ()
        steps.append(SequenceStep(slot, start, num_tokens, blocks, True))
    return steps


def run(runner: ModelRunner, made: list[StepPlan], depth: int) -> list[StepResult]:
    """The results with ``depth`` plans launched and not collected."""
    in_flight: deque[InFlight] = deque()
    results = []
    for plan in made:
        in_flight.append(runner.launch(plan))
        if len(in_flight) == depth:
            results.append(runner.collect(in_flight.popleft()))
    return results + [runner.collect(each) for each in in_flight]
