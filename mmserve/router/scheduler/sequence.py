"""The state of one sequence: its tokens, how far they are planned, its slot and blocks, and when it stops.

Status: waiting -> running -> finished; running -> waiting when preempted or restarted; waiting -> finished if aborted.
Slot and blocks are released separately: a sequence that no longer runs keeps both while a plan in flight computes it.

A plan names slots, not tokens, so the next plan can be made before the tokens of the last one are known:

    tokens               known tokens
    length               number of tokens once all plans in flight are done: one more for each that samples
    num_computed_tokens  tokens with K and V in the blocks then; length - 1 while the sequence decodes one by one
    num_unsent           the last of ``tokens`` that no plan has given to the ranks or sampled

Pure: no clock, no I/O.
"""

from __future__ import annotations

import sys
from array import array
from enum import Enum

from mmserve.messages.reply import FinishReason
from mmserve.messages.request import SUSPECT_FROM, GenerateRequest
from mmserve.router.kv_cache.manager import BlockTable
from mmserve.router.speculation.draft_source import DraftSource

_FEW_ENDING_TOKENS = 8
"""So many are looked through as fast as a set is asked, and take no memory besides the request's."""


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """State of one (request id, attempt). ``number`` is the order of arrival: a lower number goes first."""

    __slots__ = (
        "block_table",
        "draft_source",
        "ending_token_ids",
        "first_token_s",
        "has_draft",
        "largest_image_tokens",
        "length",
        "max_length",
        "not_encoded",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_encode_requests",
        "num_frees_when_refused",
        "num_prompt_logprobs",
        "num_prompt_tokens",
        "num_ready_tokens",
        "num_unsent",
        "number",
        "prompt_only",
        "received_s",
        "request",
        "slot",
        "stage_times",
        "started_s",
        "status",
        "times_bypassed",
        "tokens",
    )

    def __init__(self, request: GenerateRequest, number: int, received_s: float, context_tokens: int) -> None:
        """``context_tokens``: the most tokens that any sequence may have.

        Raises ValueError if the ids are not int64 or the prompt is empty.
        """
        self.request = request
        self.number = number
        self.received_s = received_s
        self.started_s: float | None = None
        self.first_token_s: float | None = None

        self.tokens = array("q")
        """Prompt, then output."""
        self.tokens.frombytes(request.prompt_ids)
        self.num_prompt_tokens = len(self.tokens)
        if not self.tokens:
            raise ValueError("the prompt is empty")
        self.tokens.frombytes(request.output_ids)
        self.length = len(self.tokens)
        """Number of tokens once all plans in flight are done."""
        self.prompt_only = request.pooling or not request.sampling.max_tokens
        """The sequence ends once its prompt is computed. Its ``length`` then is one more than its prompt's all the
        same, so that nothing more is planned."""
        self.max_length = min(self.num_prompt_tokens + request.sampling.max_tokens, context_tokens)
        """Prompt plus output at which the sequence ends at the latest."""
        if self.prompt_only:
            self.max_length = self.num_prompt_tokens + 1
        self.num_prompt_logprobs = request.num_prompt_logprobs
        """Rows of prompt log-probabilities that were sent, in this attempt or before."""
        self.stage_times: dict[str, float] = {}
        """Seconds by stage of encoding its images."""
        self.not_encoded = frozenset(span.item_id for span in request.spans if span.data is not None)
        """Images whose embeddings are not known to be in the arena."""
        self.num_encode_requests = 0
        self.largest_image_tokens = max((span.num_tokens for span in request.spans), default=0)
        ending = request.sampling.ending_token_ids
        self.ending_token_ids = ending if len(ending) <= _FEW_ENDING_TOKENS else frozenset(ending)

        self.status = SequenceStatus.WAITING
        self.slot = -1
        self.block_table: BlockTable | None = None
        self.num_computed_tokens = 0
        """Tokens whose keys and values are in the blocks once all plans in flight are done."""
        self.num_unsent = 0
        """Tokens of a result that were not computed with it (``StepResult.forced``) and that no plan has brought to the
        ranks. While there are any, ``length`` is the number of known tokens."""
        self.draft_source: DraftSource | None = None
        """Where the sequence's drafts come from; None until the first is looked for."""
        self.has_draft = False
        """A plan in flight has a draft for the sequence, so how many tokens it brings is not known: no further plan may
        compute the sequence."""
        self.num_ready_tokens = sys.maxsize
        """While the sequence runs: it computes no more than so many tokens, as an image that is not encoded follows."""
        self.times_bypassed = 0
        self.num_frees_when_refused = -1
        """``KvCacheManager.num_frees`` when the sequence last failed to fit; -1: never."""
        self.num_cached_tokens = -1
        """Prompt tokens found in the prefix cache on the first start; reported with the first output token."""

    @property
    def is_suspect(self) -> bool:
        """The engine has died several times while computing this sequence, and it has got no token since."""
        return self.request.num_deaths >= SUSPECT_FROM and self.first_token_s is None

    @property
    def num_cacheable_tokens(self) -> int:
        """How many of the first tokens may come from the prefix cache, if one of them at least is computed.

        Log-probabilities of a prompt token come from computing the token before it.
        """
        if self.request.sampling.prompt_logprobs is None or self.num_prompt_logprobs >= self.num_prompt_tokens - 1:
            return len(self.tokens)
        return self.num_prompt_logprobs + 1

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens to plan before the next one can be sampled; 1 while decoding one by one."""
        return self.length - self.num_computed_tokens

    @property
    def num_plannable_tokens(self) -> int:
        """Those of the remaining tokens that come before an image that is not encoded."""
        return min(self.length, self.num_ready_tokens) - self.num_computed_tokens

    @property
    def has_reached_image(self) -> bool:
        """True if the next token to plan is of an image that was not encoded when the sequence started to run."""
        return self.num_computed_tokens >= self.num_ready_tokens

    def ready_end(self, num_computed: int) -> int:
        """How many tokens can be computed, after the first ``num_computed``: up to the first row of an image that is
        not encoded; sys.maxsize if none follows."""
        if not self.not_encoded:
            return sys.maxsize
        starts = (
            max(span.start, num_computed)
            for span in self.request.spans
            if span.item_id in self.not_encoded and span.start + span.num_tokens > num_computed
        )
        return min(starts, default=sys.maxsize)

    @property
    def num_known_computed_tokens(self) -> int:
        """Computed tokens whose ids are known."""
        return min(self.num_computed_tokens, len(self.tokens))

    def finish_reason(self) -> FinishReason | None:
        """Why the last output token (at least one exists) ends the sequence. None: it goes on.

        A stop token counts from the min_tokens-th output token on.
        """
        tokens = self.tokens
        if tokens[-1] in self.ending_token_ids and self.num_output_tokens >= self.request.sampling.min_tokens:
            return "stop"
        return "length" if len(tokens) >= self.max_length else None

    def start(self, slot: int, block_table: BlockTable) -> None:
        """Starts to run in a slot. The tokens of the table's prefix hit count as computed."""
        assert self.status is SequenceStatus.WAITING
        self.status = SequenceStatus.RUNNING
        self.slot = slot
        self.block_table = block_table
        self.num_computed_tokens = block_table.prefix_hit.num_tokens
        self.num_ready_tokens = self.ready_end(self.num_computed_tokens)
        if self.num_cached_tokens < 0:
            self.num_cached_tokens = min(self.num_computed_tokens, self.num_prompt_tokens)

    @property
    def max_draft_tokens(self) -> int:
        """The longest draft that may follow the last token: 0 unless that one is known and decoded next."""
        if self.num_unsent or self.length != len(self.tokens):
            return 0
        return self.max_length - self.length - 1

    def plan_chunk(self, num_tokens: int) -> bool:
        """Counts the next ``num_tokens`` tokens as computed. True if none is left: a token is sampled after them, or
        the sequence is ``prompt_only`` and ends."""
        self.num_computed_tokens += num_tokens
        is_last = self.num_computed_tokens == self.length
        self.length += is_last
        return is_last

    def plan_decode(self) -> int:
        """Counts the last token as computed, after which one is sampled. Returns the last token's position."""
        position = self.num_computed_tokens
        self.num_computed_tokens = position + 1
        self.length += 1
        return position

    def take_unsent(self, num_tokens: int) -> tuple[int, ...]:
        """Those of the next ``num_tokens`` tokens to compute that the ranks do not have. The plan brings them."""
        end = self.num_computed_tokens + num_tokens
        start = max(self.num_computed_tokens, self.length - self.num_unsent)
        if start >= end:
            return ()
        self.num_unsent = self.length - end
        return tuple(self.tokens[start:end])

    def append(self, position: int, token_ids: tuple[int, ...], forced: tuple[int, ...] = ()) -> FinishReason | None:
        """Adds the tokens of a result, up to the one that ends the sequence. Returns why it ends; None: it goes on.

        ``position``: of the first of ``token_ids``; those that an earlier result has brought are left out. All but the
        last of ``token_ids`` were drafted and so are computed; ``forced``, which follow, are not.
        """
        tokens, self.has_draft = self.tokens, False
        if len(token_ids) == 1 and not forced and position == len(tokens):  # the common case: few further calls
            token_id = token_ids[0]
            tokens.append(token_id)
            if len(tokens) < self.max_length and token_id not in self.ending_token_ids:
                return None
            return self.finish_reason()
        num_before, finish = len(tokens), None
        for token_id in (*token_ids, *forced)[num_before - position :]:
            tokens.append(token_id)
            if finish := self.finish_reason():
                break
        if (num_added := len(tokens) - num_before) > 0:
            self.num_computed_tokens += min(num_added, len(token_ids)) - 1
        num_sent = max(self.length - self.num_unsent, position + len(token_ids))
        self.length = max(self.length, len(tokens))
        self.num_unsent = max(0, self.length - num_sent)
        return finish

    def requeue(self) -> None:
        """Stops running, to be computed again later: after preemption, when its prefix was invalidated, or to wait for
        an image."""
        assert self.status is SequenceStatus.RUNNING
        self.status = SequenceStatus.WAITING

    def finish(self) -> None:
        """Ends the sequence, for whatever reason."""
        assert self.status is not SequenceStatus.FINISHED
        self.status = SequenceStatus.FINISHED

    def reset(self) -> None:
        """Forgets slot, blocks and what was planned; the caller has released them."""
        assert self.status is not SequenceStatus.RUNNING
        self.slot = -1
        self.block_table = None
        self.num_computed_tokens = self.num_unsent = 0
        self.has_draft = False
        self.num_ready_tokens = sys.maxsize
        self.length = len(self.tokens)
