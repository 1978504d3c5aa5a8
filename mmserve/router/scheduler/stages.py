"""How far a sequence is, in one word. Pure."""

from __future__ import annotations

from mmserve.messages.reply import SequenceStage
from mmserve.router.scheduler.sequence import Sequence, SequenceStatus


def stage_of(sequence: Sequence, *, awaits_images: bool) -> SequenceStage:
    """``awaits_images``: a visual server was asked for images of it. Text before them may be computed meanwhile."""
    if sequence.status is SequenceStatus.WAITING:
        return "encoding" if awaits_images else "queued"
    if sequence.num_output_tokens and sequence.num_computed_tokens >= sequence.num_prompt_tokens:
        return "decoding"
    return "encoding" if sequence.has_reached_image else "prefill"
