"""Plans that were launched and whose results have not been collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmserve.messages.step import Proposal, SlotFailure, StepResult
from mmserve.model_backend.platforms.sampling import NO_TOKEN_ALLOWED
from mmserve.model_backend.transfers import HostCopy
from mmserve.model_backend.worker.input_batch import Slot
from mmserve.model_backend.worker.prompt_outputs import NOT_FINITE_PROMPT, PromptResults
from mmserve.model_backend.worker.sampling.draft_sampling import UNVERIFIED
from mmserve.model_backend.worker.sampling.grammar_masks import GRAMMAR_FAILED, GRAMMAR_PENDING
from mmserve.model_backend.worker.sampling.logprobs import ModelLogprobs
from mmserve.model_backend.worker.sampling.sampler import FAILURES


@dataclass
class SampledRows:
    """What one forward pass has sampled."""

    slots: Sequence[int]
    """In the order of ``tokens``. A slot with a draft has several rows, one after another."""
    sequences: Sequence[Slot]
    """The sequences in ``slots``."""
    tokens: HostCopy
    """int64 [S]: token ids, keys of FAILURES, GRAMMAR_PENDING or UNVERIFIED. Log-probabilities arrive before them."""
    logprobs: ModelLogprobs | None
    """On rank 0."""
    known_tokens: Sequence[int] | None = None
    """``tokens`` on the host, once they have been read."""
    told: frozenset[int] = frozenset()
    """Rows whose tokens the sampler has been told of already."""


@dataclass
class InFlight:
    """A launched plan."""

    step_id: int
    started_s: float
    failures: list[SlotFailure] = field(default_factory=list)
    sampled: list[SampledRows] = field(default_factory=list)
    """One for each forward pass that samples; more than one if the plan had to be computed in parts."""
    prompts: list[PromptResults] = field(default_factory=list)
    """On rank 0, one for each forward pass that computed something wanted of prompts."""
    forced: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """(slot, tokens that must follow the sampled one), on rank 0."""
    end: HostCopy | None = None
    """Of nothing, issued behind the steps where none samples, so that there is something to wait for."""
    proposals: list[Proposal] = field(default_factory=list)
    """For the steps that asked for a draft of the draft model."""
    num_draft_rows: int = 0
    """See ``StepResult``, as is ``draft_s``. On rank 0."""
    draft_s: float = 0.0
    agrees: bool = False
    """The ranks agree on errors before the model's first collective."""
    in_parts: bool = False
    """The plan could not be computed at once, so its time says nothing about other plans."""
    out_of_memory: bool = False

    def wait(self) -> None:
        """Wait until the device has computed the plan. Any thread may call it."""
        for rows in self.sampled:
            rows.tokens.wait()
        for results in self.prompts:
            results.wait()
        if self.end is not None:
            self.end.wait()

    def add_failure(self, slot: int, message: str) -> None:
        """The slot's sequence could not be computed."""
        self.failures.append(SlotFailure(slot=slot, media_lost=False, message=message))

    def add_failures(self, failures: Sequence[SlotFailure]) -> None:
        """As ``add_failure``. A plan computed in parts may meet the same failure again, which then counts once."""
        known = {failure.slot for failure in self.failures}
        self.failures += [failure for failure in failures if failure.slot not in known]

    def result(self, now_s: float) -> StepResult:
        """The result to send; the tokens of all ``sampled`` rows are known."""
        tokens: dict[int, tuple[int, ...]] = {}
        logprobs: dict[int, tuple[bytes, ...]] = {}
        deferred, failures = [], list(self.failures)
        for rows in self.sampled:
            chosen = rows.known_tokens or ()
            for slot, token_id in zip(rows.slots, chosen, strict=True):
                if token_id == GRAMMAR_PENDING:
                    deferred.append(slot)
                elif token_id == UNVERIFIED:
                    continue
                elif token_id in FAILURES:
                    failures.append(
                        SlotFailure(
                            slot=slot,
                            media_lost=False,
                            message=FAILURES[token_id],
                            grammar=token_id == GRAMMAR_FAILED,
                            no_token=token_id == NO_TOKEN_ALLOWED,
                        )
                    )
                else:
                    tokens[slot] = (*tokens.get(slot, ()), token_id)
            for row, entry in rows.logprobs.pack(chosen) if rows.logprobs else ():
                logprobs[rows.slots[row]] = (*logprobs.get(rows.slots[row], ()), entry)
        scored, pooled = self._prompt_results(failures) if self.prompts else ({}, {})
        return StepResult(
            step_id=self.step_id,
            tokens=tuple(tokens.items()),
            forced=tuple(self.forced),
            failures=tuple(failures),
            deferred=tuple(deferred),
            logprobs=tuple(logprobs.items()),
            prompt_logprobs=tuple(scored.items()),
            embeddings=tuple(pooled.items()),
            proposals=tuple(self.proposals),
            num_draft_rows=self.num_draft_rows,
            draft_s=self.draft_s,
            forward_s=0.0 if self.in_parts or deferred else now_s - self.started_s,  # it may have waited for a grammar
            out_of_memory=self.out_of_memory,
        )

    def _prompt_results(self, failures: list[SlotFailure]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """By slot: rows of log-probabilities, and embeddings. Those that are not finite are added to ``failures``."""
        scored: dict[int, bytes] = {}
        pooled: dict[int, bytes] = {}
        for results in self.prompts:  # the parts of a chunk that was cut come in the order of its tokens
            for slot, rows in results.rows():
                scored[slot] = scored.get(slot, b"") + (rows or b"")
                failures += [] if rows else [_not_finite(slot)]
            for slot, embedding in results.embeddings():
                pooled[slot] = embedding or b""
                failures += [] if embedding else [_not_finite(slot)]
        return scored, pooled


def _not_finite(slot: int) -> SlotFailure:
    return SlotFailure(slot=slot, media_lost=False, message=NOT_FINITE_PROMPT)
