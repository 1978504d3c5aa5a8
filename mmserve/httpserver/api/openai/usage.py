"""Token counts of a request in OpenAI's JSON form."""

from __future__ import annotations

import msgspec

from mmserve.httpserver.output.deltas import Usage


class PromptDetails(msgspec.Struct):
    cached_tokens: int
    """Found in the prefix cache."""
    image_tokens: int


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int


class WireUsage(msgspec.Struct):
    """The ``usage`` field of a response."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


def wire_usage(usage: Usage) -> WireUsage:
    return WireUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens, usage.image_tokens),
        completion_tokens_details=CompletionDetails(usage.reasoning_tokens),
    )
