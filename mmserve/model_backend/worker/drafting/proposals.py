"""The drafts that steps ask the draft model for, on all ranks: rank 0 computes it, the others get the tokens.

A draft model that fails leaves its steps without drafts, which changes no answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from msgspec.structs import replace

from mmserve.messages.step import BlockCopy, Proposal, SequenceStep, StepPlan
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.worker.drafting.draft_model import DraftModel
from mmserve.model_backend.worker.in_flight import InFlight
from mmserve.model_backend.worker.step_errors import StepErrors

_NONE = -1


class Proposals:
    """One rank's part. ``model`` is None on all ranks but rank 0, and where no draft model is served."""

    def __init__(self, model: DraftModel | None, tp: TpGroup, errors: StepErrors, device: torch.device) -> None:
        self._model = model
        self._tp, self._errors, self._device = tp, errors, device

    def apply(self, plan: StepPlan, copies: Sequence[BlockCopy], refused: Mapping[int, str]) -> None:
        """The input batch has applied the plan, and ``copies`` were made, but for slots in ``refused``."""
        if self._model is not None:
            self._errors.catch(self._model.apply, plan, copies, refused)

    def fill_in(self, steps: Sequence[SequenceStep], in_flight: InFlight) -> list[SequenceStep]:
        """The steps with drafts in place of ``num_proposed``. All ranks call this with the same steps."""
        if not (asking := [step for step in steps if step.num_proposed]):
            return list(steps)
        started_s = time.perf_counter()
        drafts = self._broadcast(asking, in_flight)
        in_flight.draft_s = time.perf_counter() - started_s
        in_flight.proposals = [Proposal(slot, len(draft), self._num_missing(slot)) for slot, draft in drafts.items()]
        return [replace(step, num_proposed=0, draft=drafts.get(step.slot, step.draft)) for step in steps]

    def verified(self, in_flight: InFlight) -> None:
        """The steps were computed, and their tokens are known."""
        if self._model is not None:
            for proposal in in_flight.proposals:
                if proposal.num_tokens:
                    self._model.truncate(proposal.slot)

    def _num_missing(self, slot: int) -> int:
        return 0 if self._model is None else self._model.num_missing(slot)

    def _broadcast(self, asking: Sequence[SequenceStep], in_flight: InFlight) -> dict[int, tuple[int, ...]]:
        """Slot -> draft, perhaps empty, for each of these steps."""
        padded = torch.full((sum(step.num_proposed for step in asking),), _NONE, dtype=torch.int64)
        if self._model is not None:
            found, _ = self._errors.catch(self._model.propose, asking)
            if found is None:
                for step in asking:
                    self._model.truncate(step.slot)
            drafts, in_flight.num_draft_rows = found or ({}, 0)
            place = 0
            for step in asking:
                draft = drafts.get(step.slot, [])
                padded[place : place + len(draft)] = torch.tensor(draft, dtype=torch.int64)
                place += step.num_proposed
        ids, place, received = self._tp.broadcast(padded.to(self._device)).tolist(), 0, {}
        for step in asking:
            part = ids[place : place + step.num_proposed]
            received[step.slot] = tuple(token_id for token_id in part if token_id != _NONE)
            place += step.num_proposed
        return received
