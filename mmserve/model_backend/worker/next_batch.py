"""The batch of the step that is likely to come, made while the router plans it: the same sequences go on decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmserve.messages.step import SequenceStep
from mmserve.model_backend.worker.forward_batch import ForwardBatch


class NextBatch:
    """At most one batch. It is dropped if another step comes, for instance one with a new KV block.

    ``build``: makes the batch of these steps.
    """

    def __init__(self, build: Callable[[Sequence[SequenceStep]], ForwardBatch]) -> None:
        self._build = build
        self._steps: list[SequenceStep] = []
        self._batch: ForwardBatch | None = None

    def prepare(self, done: Sequence[SequenceStep]) -> None:
        """Make the batch that decodes one token after each of these steps, if each of them has sampled one token."""
        self._batch = None
        if done and all(step.sample and not step.draft for step in done):
            self._steps = [SequenceStep(step.slot, step.start + step.num_tokens, 1, (), True) for step in done]
            self._batch = self._build(self._steps)

    def take(self, steps: Sequence[SequenceStep]) -> ForwardBatch | None:
        """The batch if it is that of these steps, once."""
        batch, self._batch = self._batch, None
        return batch if batch is not None and self._steps == list(steps) else None
