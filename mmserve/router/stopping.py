"""When a sequence ends by itself: stop ids, requested length, context length. Knows nothing of text."""

from __future__ import annotations

from mmserve.messages.reply import FinishReason
from mmserve.router.sequence import Sequence


def finish_reason(sequence: Sequence, context_tokens: int) -> FinishReason | None:
    """Why the sequence's last output token (there is one) is its last, or None when it goes on.

    A stop id counts from the min_tokens-th output token on; ``context_tokens`` bounds prompt plus output.
    """
    sampling = sequence.request.sampling
    num_output = sequence.num_output_tokens
    if sequence.tokens[-1] in sampling.stop_token_ids and num_output >= sampling.min_tokens:
        return "stop"
    if num_output >= sampling.max_tokens or len(sequence.tokens) >= context_tokens:
        return "length"
    return None
