"""Messages to an HTTP worker: tokens and stages of sequences from the router, the server's phase from the supervisor,
rows of images from a visual server, and what other HTTP workers ask and tell about responses in the background."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.messages.media import ExpandedImage, Size

FinishReason = Literal[
    "stop", "length", "abort", "error", "media_error", "media_lost", "grammar_error", "no_token_allowed", "overloaded"
]
"""Why a sequence ended.

stop: the model sampled a stop token, or the text contains a stop string. The HTTP worker alone knows stop strings: it
    sets this value itself and aborts the sequence.
length: the sequence has ``max_tokens`` output tokens (none of an embedding), or fills the context.
abort: an AbortRequest ended the sequence, because the client disconnected (it gets no reply), or because the request
    waited for its decode permit until --mm-queue-timeout, or the machine ran out of memory or descriptors (503).
error: the engine could not compute the sequence (500).
media_error: an image cannot be decoded (400, the client's fault).
media_lost: a handle was stale. The HTTP worker allocates, writes and submits again, and the client does not notice.
grammar_error: the engine could not follow the sequence's grammar (500).
no_token_allowed: the request's parameters ban every token that could come next (400, the client's fault).
overloaded: a queue is full (429).

Clients see only stop and length as a finish reason. The others become errors with the status given, or a new attempt.
"""


class TokenReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="tokens", gc=False):
    """New tokens of one sequence. ``finish`` is set on exactly one reply per request id and attempt.

    Without tokens, prompt log-probabilities and ``finish``: the sequence is about to be computed. Sent only to those
    that were computed when the engine died (``GenerateRequest.num_deaths``).
    """

    id: str
    attempt: int = 0
    token_ids: tuple[int, ...] = ()
    """If ``finish`` is "stop", the last one is the stop token."""
    logprobs: tuple[bytes, ...] = ()
    """One per token id (packed by messages/logprobs) if the request asked for them, else empty."""
    prompt_logprobs: bytes = b""
    """The next rows of the prompt's log-probabilities (see messages/logprobs), in replies without tokens."""
    embedding: bytes = b""
    """float32 [hidden]: final hidden state of the prompt's last token, not normalised. On the reply that ends a
    sequence with ``pooling``."""
    finish: FinishReason | None = None
    message: str = ""
    retry_after_s: float = 0.0
    """With finish "overloaded" or "abort": estimated seconds until there is room for the request."""
    media_index: int | None = None
    not_encoded: tuple[int, ...] = ()
    """On the first reply with tokens: item ids of images that were not encoded, as their keys and values were cached.
    All others are."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache. Set on the first reply."""
    stage_times: dict[str, float] = {}
    """Seconds by stage: those of its images, and queue, prefill, decode. Set on the reply that ends it."""


class ServerPhase(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="phase"):
    """State of the server, from the supervisor. An epoch grows when that part restarts and loses its state."""

    phase: str
    """starting | loading | ready | restarting | draining"""
    ready: bool
    detail: str = ""
    engine_epoch: int = 0
    visual_epochs: tuple[int, ...] = ()
    """One a visual server, by index."""
    cache_epoch: int = 0

    def visual_epoch(self, index: int) -> int:
        """The epoch of one visual server."""
        return self.visual_epochs[index] if index < len(self.visual_epochs) else 0


class ImageRows(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="image_rows"):
    """From a visual server: what images of these sizes become; None for one that cannot be processed."""

    sizes: tuple[Size, ...]
    expansions: tuple[ExpandedImage | None, ...]


SequenceStage = Literal["encoding", "queued", "prefill", "decoding"]
"""encoding: it needs an image that is being encoded. queued: it waits for a slot, blocks or its turn."""


class SequenceStages(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="stages"):
    """From the router: how far sequences are now, by id. Those that it does not have are left out."""

    stages: dict[str, SequenceStage]


class FollowResponse(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="follow"):
    """``worker`` wants one ResponseChanged as soon as more than ``seen`` of the response is stored."""

    id: str
    seen: int
    worker: int


class ResponseChanged(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="changed"):
    """More of a response is stored than its follower has seen."""

    id: str


class StopResponse(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="stop"):
    """The response was cancelled or deleted: its worker need not go on."""

    id: str


ResponseMessage = FollowResponse | ResponseChanged | StopResponse
HttpInbound = TokenReply | ServerPhase | ResponseMessage | ImageRows | SequenceStages
