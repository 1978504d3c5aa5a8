"""What travels back to the HTTP worker that owns the client."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error", "media_error", "media_lost", "overloaded"]
"""media_error: an image could not be decoded (the client's fault). media_lost: a handle had gone stale, the HTTP
worker allocates, writes and sends again; the client notices nothing. overloaded: too many wait already."""


class TokenReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="tokens", gc=False):
    """New tokens of one sequence; ``finish`` set on exactly one reply per request id and attempt."""

    id: str
    attempt: int = 0
    token_ids: tuple[int, ...] = ()
    """With finish "stop" the last one is the stop token itself."""
    logprobs: tuple[bytes, ...] = ()
    """One for each of ``token_ids`` when the request asked (see messages/logprobs), else empty."""
    finish: FinishReason | None = None
    message: str = ""
    media_index: int | None = None
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache (set on the first reply)."""


class ServerPhase(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="phase"):
    """State of the whole server, from the supervisor. A raised epoch means: that part lost what it held."""

    phase: str
    """starting | loading | ready | restarting | draining"""
    ready: bool
    detail: str = ""
    engine_epoch: int = 0
    visual_epoch: int = 0
    cache_epoch: int = 0


HttpInbound = TokenReply | ServerPhase
