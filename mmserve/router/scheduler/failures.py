"""Which slots of a plan have come to nothing. Knows no sequences."""

from __future__ import annotations

from collections.abc import Container

from mmserve.messages.step import SlotFailure, StepPlan, StepResult


def failures_of(plan: StepPlan, result: StepResult, sampled: Container[int]) -> dict[int, SlotFailure]:
    """By slot: what the ranks report, and slots of which a token was asked for and none came back (``sampled``: those
    of which one did)."""
    silent = [step.slot for step in plan.steps if step.sample and step.slot not in sampled]
    failures = {slot: SlotFailure(slot=slot, media_lost=False, message="no token came back") for slot in silent}
    failures.update((failure.slot, failure) for failure in result.failures)
    return failures
