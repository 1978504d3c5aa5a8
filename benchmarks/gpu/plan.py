"""The steps of the battery, and how long each may take. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """One child process. ``module`` has ``run(checks, settings)``."""

    number: int
    name: str
    seconds: float
    """Its share of the time. A step may also use what the steps before it have left."""
    module: str
    processes: int = 1
    """That make its checks together on a GPU, where most of their time goes into compiling kernels."""


_STEPS = "benchmarks.gpu.steps"
_TOGETHER = 16
STEPS = (
    Step(0, "environment", 20, f"{_STEPS}.environment"),
    Step(1, "ceilings", 25, f"{_STEPS}.ceilings"),
    Step(2, "kernels", 50, f"{_STEPS}.kernels", _TOGETHER),
    Step(3, "same tokens", 45, f"{_STEPS}.same_tokens", _TOGETHER),
    Step(4, "attention", 50, f"{_STEPS}.attention"),
    Step(5, "engine", 100, f"{_STEPS}.engine"),
    Step(6, "server", 140, f"{_STEPS}.server"),
    Step(7, "faults", 40, f"{_STEPS}.faults"),
)
"""In order of value: what is cut off at the end is missed least. Step 8, the goals, is computed by the parent."""
GOALS = 8
SECONDS = 480.0
"""Of the whole battery, its goals and the ends of children included."""


def chosen(only: str | None) -> tuple[Step, ...]:
    """``only``: numbers of steps with commas between them; None: all. Raises ValueError."""
    if only is None:
        return STEPS
    wanted = {int(part) for part in only.split(",")}
    if unknown := wanted - {step.number for step in STEPS} - {GOALS}:
        raise ValueError(f"there is no step {min(unknown)}; steps are 0 to {GOALS}")
    return tuple(step for step in STEPS if step.number in wanted)


def ends(steps: Sequence[Step], seconds: float) -> Iterator[tuple[Step, float]]:
    """Each step with the second after the start at which it must have ended, at most ``seconds``."""
    end = 0.0
    for step in steps:
        end += step.seconds
        yield step, min(end, seconds)
