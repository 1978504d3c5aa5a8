"""The tokens that launched plans sample: drawn on rank 0, broadcast to every rank, known on the host once collected."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.decode_graphs import Decoded
from mmserve.model_backend.platforms.device import is_fatal_device_error
from mmserve.model_backend.platforms.sampling import Draw
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.worker.in_flight import InFlight, SampledRows
from mmserve.model_backend.worker.input_batch import Int64s, Slot
from mmserve.model_backend.worker.sampling.draft_sampling import UNVERIFIED, DraftSampling, row_positions
from mmserve.model_backend.worker.sampling.logprobs import ModelLogprobs
from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow, draw_of
from mmserve.model_backend.worker.step_errors import StepErrors
from mmserve.model_backend.worker.step_splitting import StepError

logger = logging.getLogger(__name__)


class TokenSampling:
    """One rank's part. ``sampler`` is None on all ranks but rank 0."""

    def __init__(
        self, sampler: Sampler | None, tp: TpGroup, errors: StepErrors, transfers: Transfers, max_num_seqs: int
    ) -> None:
        self._sampler = sampler
        self._tp = tp
        self._errors = errors
        self._transfers = transfers
        self.last_token = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=transfers.device)
        """By slot: the token that it sampled last. Decode rows read it, so no id has to come from the host. The last
        place is of rows that fill up a captured step."""
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
                _add_slot(self._sampler, new.slot, new.sampling, tokens, new.num_prompt_tokens)
        for step in plan.steps:
            if step.token_ids and step.slot not in refused:
                _update_processors(self._sampler, step.slot, step.token_ids)

    def draws(self, sequences: Sequence[Slot]) -> Sequence[Draw]:
        """How rows of one token each are drawn; none where more than that decides, or on other ranks than 0."""
        if self._sampler is None or self._sampler.changes_logits:
            return ()
        return [draw_of(sequence.sampling, sequence.length) for sequence in sequences]

    def sample(
        self,
        slots: Sequence[int],
        sequences: Sequence[Slot],
        drafts: Mapping[int, Sequence[int]],
        logits: torch.Tensor | None,
        in_flight: InFlight,
        decoded: Decoded | None = None,
    ) -> StepError | None:
        """Sample on rank 0; every rank gets the tokens and keeps them as its slots' last ones, or gets the error.

        ``slots``, ``sequences``: of each row. ``drafts``: of slots that have one, and so several rows. ``logits``:
        [S, vocab], on rank 0. ``decoded``: by a captured step, with tokens that all ranks keep already; they count if
        ``draws`` gave some to rank 0.
        """
        drawn = None if decoded is None else decoded.tokens
        made, error, keep = None, None, drawn is not None
        if self._sampler is not None and logits is not None:
            keep = drawn is not None and not self._sampler.changes_logits
            draw = self._draw if drawn is None or not keep else partial(self._with_logprobs, drawn)
            made, error = self._errors.catch(draw, self._sampler, logits, slots, sequences, drafts)
        error, keep = self._errors.of_rank_0(error, keep)
        if error:
            if decoded is not None:
                self.last_token.index_copy_(0, self._index(slots), decoded.read)
            return error
        tokens, logprobs, told = made or (self._room(len(slots)), None, frozenset[int]())
        tokens = drawn if drawn is not None and keep else self._tp.broadcast(tokens)
        rows = SampledRows(slots, sequences, self._transfers.to_host(tokens), logprobs, told=told)
        in_flight.sampled.append(rows)
        if keep:
            _lengthen(sequences)
        else:
            self._keep(rows, tokens, has_drafts=bool(drafts))
        return None

    def _room(self, count: int) -> torch.Tensor:
        """For tokens of rank 0."""
        return torch.empty(count, dtype=torch.int64, device=self._transfers.device)

    def _keep(self, rows: SampledRows, tokens: torch.Tensor, *, has_drafts: bool) -> None:
        """Keep the last token of each slot. With drafts this waits for the tokens, whose number is not known else."""
        slots, sequences = rows.slots, rows.sequences
        if has_drafts:
            self._read(rows)
            sampled = [row for row, token_id in enumerate(rows.known_tokens or ()) if token_id != UNVERIFIED]
            last_rows = list({slots[row]: row for row in sampled}.values())
            slots, tokens = [slots[row] for row in last_rows], tokens[self._index(last_rows)]
            sequences = [sequences[row] for row in sampled]
        # A row without a token gets token 0, so that a plan already in flight for its slot can still be computed.
        self.last_token.index_copy_(0, self._index(slots), tokens.clamp(min=0))
        _lengthen(sequences)

    def _index(self, numbers: Sequence[int]) -> torch.Tensor:
        return self._transfers.to_device(torch.tensor(numbers))

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
        self,
        sampler: Sampler,
        logits: torch.Tensor,
        slots: Sequence[int],
        sequences: Sequence[Slot],
        drafts: Mapping[int, Sequence[int]],
    ) -> tuple[torch.Tensor, ModelLogprobs, frozenset[int]]:
        """What ``Sampler.sample`` returns, the log-probabilities of the tokens, and ``SampledRows.told``."""
        if any(map(sampler.needs_update, slots)):
            self.read_tokens()
        rows = _sample_rows(slots, sequences)
        logprobs = ModelLogprobs(logits, [row.sampling for row in rows], self._transfers)
        if not drafts:
            tokens, told = sampler.sample(logits, rows), frozenset[int]()
            logprobs.compute(tokens)
            return tokens, logprobs, told
        sampling = DraftSampling(sampler, rows, drafts)
        try:
            tokens = sampling.sample(logits)
            logprobs.compute(tokens)
        except Exception:
            # Raised again, whatever it is: before that, the slots forget drafts that their sequences did not get.
            for slot, sequence in {rows[row].slot: sequences[row] for row in sampling.told}.items():
                tokens_so_far = sequence.chunk(0, len(sequence.tokens))
                _add_slot(sampler, slot, sequence.sampling, tokens_so_far, sequence.num_prompt_tokens)
            raise
        return tokens, logprobs, frozenset(sampling.told)

    def _with_logprobs(
        self,
        drawn: torch.Tensor,
        sampler: Sampler,
        logits: torch.Tensor,
        slots: Sequence[int],
        sequences: Sequence[Slot],
        drafts: Mapping[int, Sequence[int]],
    ) -> tuple[torch.Tensor, ModelLogprobs, frozenset[int]]:
        """As ``_draw``, of tokens that are drawn already."""
        logprobs = ModelLogprobs(logits, [sequence.sampling for sequence in sequences], self._transfers)
        logprobs.compute(drawn)
        return drawn, logprobs, frozenset()

    def _record(self, in_flight: InFlight) -> None:
        """At the first call, wait for the plan's tokens and add them to their sequences."""
        for rows in in_flight.sampled:
            self._read(rows)

    def _read(self, rows: SampledRows) -> None:
        if rows.known_tokens is not None:
            return
        rows.known_tokens = tokens = rows.tokens.wait().tolist()
        for row, token_id in enumerate(tokens):
            if token_id == UNVERIFIED:
                continue
            rows.sequences[row].tokens.append(max(token_id, 0))
            if self._sampler is not None and token_id >= 0 and row not in rows.told:
                _update_processors(self._sampler, rows.slots[row], (token_id,))


def _sample_rows(slots: Sequence[int], sequences: Sequence[Slot]) -> list[SampleRow]:
    positions = row_positions(slots, [sequence.length for sequence in sequences])
    return [
        SampleRow(slot, sequence.sampling, position)
        for slot, sequence, position in zip(slots, sequences, positions, strict=True)
    ]


def _lengthen(sequences: Sequence[Slot]) -> None:
    """By the token that each was given."""
    for sequence in sequences:
        sequence.length += 1


def _add_slot(sampler: Sampler, slot: int, sampling: SamplingParams, tokens: Int64s, num_prompt_tokens: int) -> None:
    """The sampler's state of a sequence with these tokens."""
    try:
        sampler.add_slot(slot, sampling, tokens[:num_prompt_tokens], tokens[num_prompt_tokens:])
    except Exception as error:
        # Only rank 0 knows. The other ranks compute the step as well and get the failure as a token.
        if is_fatal_device_error(error):
            raise
        logger.exception("a logits processor failed")
        sampler.fail_slot(slot)


def _update_processors(sampler: Sampler, slot: int, token_ids: Sequence[int]) -> None:
    try:
        sampler.update(slot, token_ids)
    except Exception as error:  # the boundary of one sequence, as in TokenSampling.update
        if is_fatal_device_error(error):
            raise
        logger.exception("a logits processor failed")
        sampler.fail_slot(slot)
