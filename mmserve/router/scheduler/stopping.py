"""When a sequence ends by itself: stop ids, requested length, context length. Knows nothing of text."""

from __future__ import annotations

from mmserve.messages.reply import FinishReason
from mmserve.router.scheduler.sequence import Sequence


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Why the sequence's last output token (there is one) is its last, or None when it goes on.

    A stop id counts from the min_tokens-th output token on.
    """
    tokens, sampling = sequence.tokens, sequence.request.sampling
    if tokens[-1] in sampling.stop_token_ids and sequence.num_output_tokens >= sampling.min_tokens:
        return "stop"
    return "length" if len(tokens) >= sequence.max_length else None
