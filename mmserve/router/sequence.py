"""One sequence on its way through the engine: its tokens, how many are computed, what it occupies.

States: waiting -> running -> ended; running -> waiting when preempted; waiting -> ended when aborted.
Knows no policy: when to move and why is the scheduler's business.
"""

from __future__ import annotations

from array import array
from enum import Enum

from mmserve.messages.request import GenerateRequest
from mmserve.router.kv_ledger import Holding


class Phase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Sequence:
    """State of one (id, attempt). ``number`` is the order of receipt: a lower one is older and goes first."""

    __slots__ = (
        "computed",
        "first_token_s",
        "holding",
        "max_length",
        "num_cached_tokens",
        "num_prompt_tokens",
        "number",
        "phase",
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
        """Prompt, then output; the one sampled last is not computed yet."""
        self.tokens.frombytes(request.prompt_ids)
        self.num_prompt_tokens = len(self.tokens)
        if not self.tokens:
            raise ValueError("the prompt is empty")
        self.tokens.frombytes(request.output_ids)
        self.max_length = min(self.num_prompt_tokens + request.sampling.max_tokens, context_tokens)
        """Prompt plus output at which it ends, whatever it says."""

        self.phase = Phase.WAITING
        self.slot = -1
        self.holding: Holding | None = None
        self.computed = 0
        """Tokens whose keys and values are in the held blocks."""
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
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return len(self.tokens) - self.computed

    def run(self, slot: int, holding: Holding, num_cached_tokens: int) -> None:
        """Enter a slot; the first ``num_cached_tokens`` are in the held blocks already."""
        assert self.phase is Phase.WAITING
        self.phase = Phase.RUNNING
        self.slot = slot
        self.holding = holding
        self.computed = num_cached_tokens

    def wait(self) -> None:
        """Leave the slot to be computed again later (preemption)."""
        assert self.phase is Phase.RUNNING
        self._leave(Phase.WAITING)

    def end(self) -> None:
        """No more tokens, whatever the reason."""
        assert self.phase is not Phase.ENDED
        self._leave(Phase.ENDED)

    def _leave(self, phase: Phase) -> None:
        self.phase = phase
        self.slot = -1
        self.holding = None
        self.computed = 0
