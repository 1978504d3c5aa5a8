"""The tokens that launched plans sample: drawn on rank 0, broadcast to every rank, known on the host once collected."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container, Sequence

import numpy as np
import torch

from mmserve.messages.step import StepPlan
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.device import is_fatal_device_error
from mmserve.model_backend.worker.in_flight import InFlight, SampledRows
from mmserve.model_backend.worker.input_batch import Slot
from mmserve.model_backend.worker.sampling.logprobs import ModelLogprobs
from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow
from mmserve.model_backend.worker.step_errors import StepErrors
from mmserve.model_backend.worker.step_splitting import StepError

logger = logging.getLogger(__name__)


class TokenSampling:
    """One rank's part. ``sampler`` is None on all ranks but rank 0."""

    def __init__(
        self, sampler: Sampler | None, tp: TpGroup, errors: StepErrors, device: torch.device, max_num_seqs: int
    ) -> None:
        self._sampler = sampler
        self._tp = tp
        self._errors = errors
        self._device = device
        self.last_token = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        """By slot: the token that it sampled last. Decode rows read it, so no id has to come from the host."""
        self._uncollected: deque[InFlight] = deque()

    def update(self, plan: StepPlan, refused: Container[int]) -> None:
        """Apply the plan's changes of slots, and the tokens that it brings, but for slots in ``refused``."""
        if self._sampler is None:
            return
        for slot in plan.free:
            self._sampler.remove_slot(slot)
        for new in plan.new:
            if new.slot not in refused:
                tokens = np.frombuffer(new.token_ids, dtype=np.int64)
                prompt, output = tokens[: new.num_prompt_tokens], tokens[new.num_prompt_tokens :]
                try:
                    self._sampler.add_slot(new.slot, new.sampling, prompt, output)
                except Exception as error:
                    # Only rank 0 knows. The other ranks compute the step as well and get the failure as a token.
                    if is_fatal_device_error(error):
                        raise
                    logger.exception("a logits processor failed")
                    self._sampler.fail_slot(new.slot)
        for step in plan.steps:
            if step.token_ids and step.slot not in refused:
                _update_processors(self._sampler, step.slot, step.token_ids)

    def sample(
        self, slots: Sequence[int], sequences: Sequence[Slot], logits: torch.Tensor | None, in_flight: InFlight
    ) -> StepError | None:
        """Sample on rank 0; every rank gets the tokens and keeps them as its slots' last ones, or gets the error.

        ``sequences``: those in ``slots``. ``logits``: [S, vocab], on rank 0.
        """
        error, logprobs = None, None
        if self._sampler is not None and logits is not None:
            drawn, error = self._errors.catch(self._draw, self._sampler, logits, slots, sequences)
            tokens, logprobs = drawn or (self._errors.tokens_for(error, len(slots)), None)
        else:
            tokens = torch.empty(len(slots), dtype=torch.int64, device=self._device)
        tokens = self._tp.broadcast(tokens)
        if error := self._errors.in_tokens(error, tokens):
            return error
        # A row without a token gets token 0, so that a plan already in flight for its slot can still be computed.
        self.last_token.index_copy_(0, torch.tensor(slots, device=tokens.device), tokens.clamp(min=0))
        for sequence in sequences:
            sequence.length += 1
        in_flight.sampled.append(SampledRows(slots, sequences, tokens, logprobs))
        return None

    def launched(self, in_flight: InFlight) -> None:
        """The plan's steps have been issued."""
        self._uncollected.append(in_flight)

    def collect(self, in_flight: InFlight) -> None:
        """Wait for the tokens of the oldest plan that is not collected, and find those that are forced after them."""
        oldest = self._uncollected.popleft()
        assert oldest is in_flight, "plans are collected in the order in which they were launched"
        self._record(in_flight)
        if self._sampler is None or any(rows.known_tokens for later in self._uncollected for rows in later.sampled):
            return  # a later plan's tokens are known: what follows these is not news
        for rows in in_flight.sampled:
            tokens = zip(rows.slots, rows.known_tokens or (), strict=True)
            in_flight.forced += self._sampler.forced_tokens(slot for slot, token_id in tokens if token_id >= 0)

    def read_tokens(self) -> None:
        """Wait for the tokens of all launched plans."""
        for in_flight in self._uncollected:
            self._record(in_flight)

    def prepare(self) -> None:
        """Work for the next step that need not wait for its plan."""
        if self._sampler is not None:
            self._sampler.prepare()

    def _draw(
        self, sampler: Sampler, logits: torch.Tensor, slots: Sequence[int], sequences: Sequence[Slot]
    ) -> tuple[torch.Tensor, ModelLogprobs]:
        """What ``Sampler.sample`` returns, and the log-probabilities of the tokens."""
        if any(map(sampler.needs_update, slots)):
            self.read_tokens()
        rows = [
            SampleRow(slot, sequence.sampling, sequence.length) for slot, sequence in zip(slots, sequences, strict=True)
        ]
        logprobs = ModelLogprobs(logits, rows)
        tokens = sampler.sample(logits, rows)
        logprobs.compute(tokens)
        return tokens, logprobs

    def _record(self, in_flight: InFlight) -> None:
        """At the first call, wait for the plan's tokens and add them to their sequences."""
        for rows in in_flight.sampled:
            if rows.known_tokens is None:
                rows.known_tokens = rows.tokens.tolist()
                for slot, sequence, token_id in zip(rows.slots, rows.sequences, rows.known_tokens, strict=True):
                    sequence.tokens.append(max(token_id, 0))
                    if self._sampler is not None and token_id >= 0:
                        _update_processors(self._sampler, slot, (token_id,))


def _update_processors(sampler: Sampler, slot: int, token_ids: Sequence[int]) -> None:
    try:
        sampler.update(slot, token_ids)
    except Exception as error:  # the boundary of one sequence, as in TokenSampling.update
        if is_fatal_device_error(error):
            raise
        logger.exception("a logits processor failed")
        sampler.fail_slot(slot)
