"""How long a step that only decodes waits for prompts whose pictures are being encoded. Pure: the clock is passed in.

Where the vision tower computes on the cores of the ranks, such a step takes a core from it to read all weights for a
few rows. In a step with prompts these rows cost as little as tokens of the prompts, and more of them come together.
"""

from __future__ import annotations

from mmserve.router.scheduler.image_requests import ImageRequests
from mmserve.router.scheduler.queues import RunningSet, WaitingQueue
from mmserve.router.scheduler.requests import Clock
from mmserve.router.scheduler.step_budget import StepTimeModel

_FACTOR = 2.0
"""A pause is so many times as long as a step without prompts, which then take at most a third of the time. InternVL's
rate rose by a tenth with 2 and no further with 6, and an answer beside pictures gets slower with it."""
_SHORTEST_S = 0.001
"""Not worth waiting for: sockets wait for whole milliseconds."""


class DecodePause:
    """Only answers to pictures wait, never text. ``step_ended`` must be called after each result."""

    def __init__(
        self, running: RunningSet, waiting: WaitingQueue, images: ImageRequests, step_times: StepTimeModel, now: Clock
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._images = images
        self._step_times = step_times
        self._now = now
        self._ended_s = 0.0

    def step_ended(self) -> None:
        self._ended_s = self._now()

    def seconds(self) -> float:
        """From now until the next step. 0: it should begin."""
        if not self._images.awaits_any or self._waiting:
            return 0.0
        decoding, prefilling = self._running.partition()
        if prefilling or not decoding or not all(each.request.spans for each in decoding):
            return 0.0
        left_s = self._ended_s + _FACTOR * self._step_times.decode_s - self._now()
        return left_s if left_s >= _SHORTEST_S else 0.0
