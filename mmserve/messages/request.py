"""Messages towards the engine: HTTP worker -> router, router -> visual server and back."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.messages.media import MediaSpan, Size
from mmserve.messages.sampling import SamplingParams


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="generate"):
    """One sequence to generate, or a prompt to score, embed or look up. Idempotent by id and attempt."""

    id: str
    """Made by ``choice_id``."""
    reply_to: int
    """Index of the HTTP worker that owns the client."""
    prompt_ids: bytes
    """int64, little endian. Image tokens are virtual ids (see Deployment)."""
    spans: tuple[MediaSpan, ...] = ()
    sampling: SamplingParams
    cache_salt: str = ""
    """Sequences with different salts share no cached KV blocks."""
    pooling: bool = False
    """The answer is the prompt's embedding (``TokenReply.embedding``), without any token."""
    look_up: bool = False
    """The answer is ``TokenReply.num_cached_tokens`` alone. Nothing is computed, so images need no spans."""
    output_ids: bytes = b""
    """int64 tokens that the client has already, if the request is submitted again after a restart."""
    priority: int = 0
    """Waiting requests of a lower value start first. From -MAX_PRIORITY to MAX_PRIORITY."""
    num_prompt_logprobs: int = 0
    """Rows of prompt log-probabilities that the client has already."""
    arrival_s: float
    """CLOCK_MONOTONIC when the HTTP request arrived."""
    arena_s: float = 0.0
    """How long its pictures waited for room in the arena."""
    attempt: int = 0
    """Increased each time the HTTP worker submits the request again. Replies to older attempts are discarded."""
    pictures: tuple[tuple[int, int], ...] = ()
    """A front's names of the request's pictures (``cluster/scale/reports``), each with the picture's ``short_key``."""
    beginnings: tuple[tuple[int, int], ...] = ()
    """A front's names of beginnings of the prompt, each with about how many tokens it has, the shortest first."""
    num_deaths: int = 0
    """How often the engine has died while computing it, since its last token. From SUSPECT_FROM on, it may be why."""


MAX_PRIORITY = 100
SUSPECT_FROM = 2
"""``GenerateRequest.num_deaths`` from which on a sequence is a suspect: the router starts it when no other suspect is
between its start and its first token. Before it sends a plan, the router tells the HTTP workers which sequences with a
death behind them start in it. So a death counts for those that were computed, and the third one shows who it was."""


def choice_id(request_id: str, index: int) -> str:
    """Id of one of the n sequences of a client's request."""
    return f"{request_id}-{index}"


class EncodeRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="encode"):
    """From the router to a visual server: encode these images of a sequence, in this order.

    The answers are one ``ImagesEncoded`` or more, or an ``AbortRequest``. An AbortRequest to the visual server says
    that nobody waits any more.
    """

    id: str
    reply_to: int
    spans: tuple[MediaSpan, ...]
    """Of the images to encode; all have ``data``."""
    arrival_s: float
    attempt: int = 0
    number: int = 0
    """How many requests of the same attempt came before this one. They have been answered."""

    @property
    def client_request(self) -> str:
        """Id of the client's request, of which this sequence is one choice."""
        return self.id.rsplit("-", 1)[0]


class ImagesEncoded(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="encoded"):
    """From a visual server to the router: the embeddings of these images of a sequence are in the arena."""

    id: str
    attempt: int
    item_ids: tuple[int, ...]
    stage_times: dict[str, float] = {}
    """Seconds by stage: turn (waiting for a permit), image_decode, encode. With the last images of an EncodeRequest."""


AbortReason = Literal[
    "client", "media_error", "media_lost", "internal_error", "queue_full", "queue_timeout", "shortage"
]


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="abort"):
    """End a request. The router answers with the terminal reply."""

    id: str
    reply_to: int
    reason: AbortReason = "client"
    message: str = ""
    retry_after_s: float = 0.0
    """With reason "queue_full" or "queue_timeout": estimated seconds until there is room for the request."""
    media_index: int | None = None
    attempt: int = 0


class WorkerDied(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="worker_died"):
    """From the supervisor: nobody waits any more for the sequences that this HTTP worker had accepted by then.

    Its successor has the same index; requests that arrive there have a later ``arrival_s``.
    """

    worker: int
    died_s: float
    """Of the monotonic clock."""

    def concerns(self, request: GenerateRequest | EncodeRequest) -> bool:
        """True if the request belongs to the worker that died."""
        return request.reply_to == self.worker and request.arrival_s < self.died_s


class CountImageRows(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="count_rows"):
    """From an HTTP worker to a visual server: what do images of these sizes become? Answered by ImageRows.

    For models whose image processor only transformers has.
    """

    reply_to: int
    """Index of the HTTP worker."""
    sizes: tuple[Size, ...]


class AskStages(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="ask_stages"):
    """From an HTTP worker to the router: how far are these sequences? Answered by SequenceStages.

    Sent while somebody looks at the requests in flight, at most once a second.
    """

    reply_to: int
    """Index of the HTTP worker."""
    ids: tuple[str, ...]


RequestMessage = GenerateRequest | AbortRequest
"""Messages about one sequence from an HTTP worker."""
EngineInbound = RequestMessage | ImagesEncoded | WorkerDied | AskStages
"""Messages received by the router."""
EncoderMessage = EncodeRequest | AbortRequest | WorkerDied
"""Messages about images that a visual server encodes."""
VisualInbound = EncoderMessage | CountImageRows
"""Messages received by a visual server."""
