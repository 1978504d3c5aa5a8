"""One sequence on its way through the engine: its tokens, how many are planned, what it occupies.

States: waiting -> running -> ended; running -> waiting when preempted; waiting -> ended when aborted. Slot and blocks
are left apart from that: what a plan in flight still computes keeps them, though it does not run any more.

Plans name slots, not tokens, so the next can be made before the last one's tokens are back:

    tokens     are known
    length     will be known when all plans in flight are done; one more for each of them that samples
    planned    will be computed then; one less than length, once the sequence decodes

Knows no policy: when to move and why is the scheduler's business.
"""

from __future__ import annotations

from array import array
from enum import Enum

from mmserve.messages.request import GenerateRequest
from mmserve.router.kv_cache.manager import BlockTable


class Phase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Sequence:
    """State of one (id, attempt). ``number`` is the order of receipt: a lower one is older and goes first."""

    __slots__ = (
        "first_token_s",
        "holding",
        "length",
        "max_length",
        "num_cached_tokens",
        "num_prompt_tokens",
        "number",
        "phase",
        "planned",
        "received_s",
        "refused_after",
        "request",
        "slot",
        "started_s",
        "times_bypassed",
        "tokens",
    )

    def __init__(self, request: GenerateRequest, number: int, received_s: float, context_tokens: int) -> None:
        """``context_tokens``: most that any sequence may have. Raises ValueError when the ids are no int64 or there is
        no prompt."""
        self.request = request
        self.number = number
        self.received_s = received_s
        self.started_s: float | None = None
        self.first_token_s: float | None = None

        self.tokens = array("q")
        """Prompt, then output, as far as it is known."""
        self.tokens.frombytes(request.prompt_ids)
        self.num_prompt_tokens = len(self.tokens)
        if not self.tokens:
            raise ValueError("the prompt is empty")
        self.tokens.frombytes(request.output_ids)
        self.length = len(self.tokens)
        """Tokens when all plans in flight are done."""
        self.max_length = min(self.num_prompt_tokens + request.sampling.max_tokens, context_tokens)
        """Prompt plus output at which it ends, whatever it says."""

        self.phase = Phase.WAITING
        self.slot = -1
        self.holding: BlockTable | None = None
        self.planned = 0
        """Tokens whose keys and values are in the held blocks when all plans in flight are done."""
        self.times_bypassed = 0
        self.refused_after = -1
        """The ledger's num_frees when the sequence did not fit."""
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache at first; the client is told with its first token."""

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        """Tokens to plan before the next one can be sampled; 1 while decoding."""
        return self.length - self.planned

    def run(self, slot: int, holding: BlockTable, num_cached_tokens: int) -> None:
        """Enter a slot; the first ``num_cached_tokens`` are in the held blocks already."""
        assert self.phase is Phase.WAITING
        self.phase = Phase.RUNNING
        self.slot = slot
        self.holding = holding
        self.planned = num_cached_tokens

    def plan(self, num_tokens: int) -> bool:
        """A step computes the next ``num_tokens``; True when a token is sampled after them."""
        self.planned += num_tokens
        sample = self.planned == self.length
        self.length += sample
        return sample

    def plan_token(self) -> int:
        """A step computes the last token, after which one is sampled; the place of the last."""
        start = self.planned
        self.planned = start + 1
        self.length += 1
        return start

    def wait(self) -> None:
        """To be computed again later (preemption)."""
        assert self.phase is Phase.RUNNING
        self.phase = Phase.WAITING

    def end(self) -> None:
        """No more tokens, whatever the reason."""
        assert self.phase is not Phase.ENDED
        self.phase = Phase.ENDED

    def leave(self) -> None:
        """Occupy nothing any more; what was planned is forgotten."""
        assert self.phase is not Phase.RUNNING
        self.slot = -1
        self.holding = None
        self.planned = 0
        self.length = len(self.tokens)
