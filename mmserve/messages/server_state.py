"""What the server does now and has done in the last hour, in JSON.

The cache server sends the arena, and HTTP workers their requests, to the metrics server, which sends all of it to the
HTTP workers, which show it at ``/admin/state``. Times of the clock are in seconds since 1970.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UnsetType

ExtentState = Literal["reserved", "writing", "data", "embed", "failed"]
"""reserved: waits for an embedding. writing: the image's bytes are being written. data: they are there. embed: the
embedding is there. failed: of no use, kept until its last lease ends."""


class ArenaExtent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stretch of the arena that is in use. What is between two of them is a hole."""

    offset: int
    nbytes: int
    state: ExtentState
    leases: int
    """Of its image. 0: it may be evicted."""


class ArenaState(msgspec.Struct, frozen=True, kw_only=True):
    """The arena and all that is in it, by offset."""

    nbytes: int
    num_extents: int
    num_leases: int
    num_holes: int
    free_nbytes: int
    largest_hole_nbytes: int
    cell_nbytes: int
    """0: ``extents`` are all extents. Else there are too many: the arena is shown in cells of this size, each in the
    state that most of its used bytes are in."""
    extents: tuple[ArenaExtent, ...]


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """One process. ``state``: gone | starting | ready. Memory is null if it could not be read."""

    name: str
    title: str
    pid: int
    state: str
    uptime_s: float
    restarts: int
    heartbeat_age_s: float | None
    busy: bool
    rss_bytes: int | None
    pss_bytes: int | None
    """Resident memory, pages that processes share counted in part."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What waits and what is used now; totals are since the start."""

    requests_in_flight: int
    sequences_running: int
    slots: int
    """Sequences that may run at once."""
    sequences_waiting: int
    kv_blocks_held: int
    kv_blocks_cached: int
    kv_blocks_free: int
    preemptions: int
    images_waiting: int
    """Requests that wait in the visual servers."""
    images_decoding: int
    prompt_tokens: int
    generation_tokens: int
    prefix_hit_tokens: int
    """Prompt tokens found in the prefix cache."""
    prefix_query_tokens: int
    """Prompt tokens looked up there."""


class Latency(msgspec.Struct, frozen=True, gc=False):
    """A distribution; percentiles are estimated within the buckets of a histogram. Null: nothing was measured."""

    count: int = 0
    mean_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


class AllocArm(msgspec.Struct, frozen=True, kw_only=True):
    """One path of allocation (v1 or v2) in the last hour. ``waiting``: requests that wait for space in the arena now.
    ``stages``: fetch, hash, alloc (write contained), write, in seconds a request."""

    requests: int
    images: int
    cached_images: int
    waiting: int
    stages: dict[str, Latency]


class LastHour(msgspec.Struct, frozen=True, kw_only=True):
    """Sums and distributions over ``seconds``, an hour or less. ``stages``: of all images and sequences."""

    seconds: float
    prompt_tokens: int
    generation_tokens: int
    ttft: Latency
    itl: Latency
    e2e: Latency
    stages: dict[str, Latency]
    arms: dict[str, AllocArm]


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A few seconds that ended at ``time_s``. Percentiles are left out where nothing was measured."""

    time_s: float
    seconds: float
    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    """That got their first token."""
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    itl_p99_s: float | None = None


RequestStage = Literal["reading", "waiting", "encoding", "queued", "prefill", "decoding"]
"""reading: its images are being read. waiting: for room in the arena, then for its prompt to be built. The others are
those of the router (``messages.reply.SequenceStage``)."""
MAX_REQUESTS = 100


class RequestState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request in flight, without anything that its client has written."""

    id: str
    """As in logs."""
    age_s: float
    state: RequestStage | None
    """Of its first choice that has not ended. Null: the router has not told it in time."""
    prompt_tokens: int
    """0 until the prompt is built."""
    output_tokens: int
    """Of all choices, so far."""
    images: int


class ServerState(msgspec.Struct, kw_only=True):
    """All of it, at one moment."""

    time_s: float
    phase: str
    detail: str
    reasons: tuple[str, ...]
    """Why the server is not ready."""
    uptime_s: float
    processes: tuple[ProcessState, ...]
    load: Load
    requests: tuple[RequestState, ...]
    """The MAX_REQUESTS oldest ones, oldest first. Those whose bodies are still being read are not among them."""
    last_hour: LastHour
    history: tuple[HistoryPoint, ...]
    """Of the last hour, or since the time that was asked for."""
    arena: ArenaState | UnsetType | None
    """Left out of an event if it is as in the event before."""
    missing: tuple[str, ...]
    """processes | arena | requests: a process that knows this does not answer."""
