"""What travels towards the engine: http -> visual or router, visual -> router (forwarded unchanged)."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.messages.media import MediaSpan
from mmserve.messages.sampling import SamplingParams


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="generate"):
    """One sequence to generate. Receiving the same id twice is the same as once."""

    id: str
    """See ``choice_id``."""
    reply_to: int
    """Index of the HTTP worker that owns the client."""
    prompt_ids: bytes
    """int64 little endian; image tokens are virtual ids (see Deployment)."""
    spans: tuple[MediaSpan, ...] = ()
    sampling: SamplingParams
    output_ids: bytes = b""
    """int64 tokens already sent to the client, when the request is sent again after a restart."""
    arrival_s: float
    """CLOCK_MONOTONIC at HTTP arrival."""
    attempt: int = 0
    """Raised by the HTTP worker each time it sends the request again; replies to older attempts are dropped."""

    @property
    def client_request(self) -> str:
        """Id of what the client asked, of which this is one choice."""
        return self.id.rsplit("-", 1)[0]


def choice_id(request_id: str, index: int) -> str:
    """Id of one of the n sequences that answer a client's request."""
    return f"{request_id}-{index}"


AbortReason = Literal["client", "media_error", "media_lost", "internal_error", "queue_full", "queue_timeout"]


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="abort"):
    """End a request wherever it is. Takes its request's road; the router answers with the one terminal reply."""

    id: str
    reply_to: int
    reason: AbortReason = "client"
    message: str = ""
    media_index: int | None = None
    attempt: int = 0


EngineInbound = GenerateRequest | AbortRequest
"""All that the router's and the visual server's inboxes carry."""
