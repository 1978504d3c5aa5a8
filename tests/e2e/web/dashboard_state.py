"""A state as ``/admin/state`` sends it, of a busy server that there is none of: an hour of figures, a full arena."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import msgspec

from mmserve.httpserver.api.admin.state import AdminState, AllocSwitch
from mmserve.messages.server_state import (
    AllocArm,
    ArenaExtent,
    ArenaState,
    HistoryPoint,
    LastHour,
    Latency,
    Load,
    ProcessState,
    RequestStage,
    RequestState,
)

_MIB = 1 << 20
_TITLES = ("supervisor", "metrics", "health", "cache_server", "model_backend rank 0", "router", "visualserver 0")


def busy_state(time_s: float | None = None, *, model: str = "llava", phase: str = "ready") -> AdminState:
    """Of another second another one: tokens grow, and images come and go."""
    time_s = time.time() if time_s is None else time_s
    second = int(time_s) % 100_000
    arms = {
        arm: AllocArm(
            requests=count,
            images=3 * count,
            cached_images=count,
            waiting=waiting,
            stages={
                stage: _latency(count, seconds)
                for stage, seconds in (("fetch", 0.0031), ("hash", 0.0009), ("alloc", alloc_s), ("write", 0.0004))
            },
        )
        for arm, count, waiting, alloc_s in (("v1", 412, 2, 0.0042), ("v2", 1240, 0, 0.0016))
    }
    stages = {
        "visual_queue": _latency(1652, 0.011),
        "image_decode": _latency(4956, 0.007),
        "encode": _latency(1320, 0.093),
        "queue": _latency(3120, 0.018),
        "prefill": _latency(3120, 0.140),
        "decode": _latency(3101, 0.900),
    }
    return AdminState(
        time_s=time_s,
        phase=phase,
        detail="",
        reasons=() if phase == "ready" else (f"phase is {phase}",),
        uptime_s=93_784.0,
        processes=tuple(_process(index, title) for index, title in enumerate((*_TITLES, "httpserver 0"))),
        load=_load(second),
        requests=_requests(second),
        last_hour=LastHour(
            seconds=3600,
            prompt_tokens=1_846_200,
            generation_tokens=402_311,
            ttft=_latency(3120, 0.213),
            itl=_latency(399_000, 0.021),
            e2e=_latency(3101, 1.92),
            stages=stages,
            arms=arms,
        ),
        history=tuple(_point(time_s, number) for number in range(720)),
        arena=_arena(second),
        missing=(),
        model=model,
        version="1.2.3",
        alloc=AllocSwitch(True, 0.75),
    )


def as_event(state: AdminState) -> bytes:
    return b"data: " + msgspec.json.encode(state) + b"\n\n"


def as_json(state: AdminState) -> dict[str, Any]:
    return dict(msgspec.json.decode(msgspec.json.encode(state)))


def _latency(count: int, seconds: float) -> Latency:
    return Latency(count, 1.2 * seconds, seconds, 2.4 * seconds, 3.9 * seconds)


def _process(index: int, title: str) -> ProcessState:
    nbytes = (300 if title.startswith("model") else 60) * _MIB
    return ProcessState(
        name=title.replace(" ", "-"),
        title=title,
        pid=4100 + index,
        state="ready",
        uptime_s=93_700.0 - index,
        restarts=1 if title == "visualserver 0" else 0,
        heartbeat_age_s=None if title == "supervisor" else 0.1 * index,
        busy=title.startswith("model"),
        rss_bytes=nbytes,
        pss_bytes=int(0.7 * nbytes),
    )


def _requests(second: int) -> tuple[RequestState, ...]:
    stages: tuple[RequestStage | None, ...] = (None, "queued", "reading", "waiting", "encoding", "prefill")
    count = 9 + second % 5
    return tuple(
        RequestState(
            id=f"{(second - number) * 7919 % 16**12:012x}",
            age_s=(count - number) ** 2 * 0.9,
            state="decoding" if number < 7 else stages[number % len(stages)],
            prompt_tokens=0 if number % 6 in (2, 3) and number >= 7 else 120 + 83 * number,
            output_tokens=40 * (7 - number) if number < 7 else 0,
            images=number % 4,
        )
        for number in range(count)
    )


def _load(second: int) -> Load:
    running = 9 + second % 5
    return Load(
        requests_in_flight=running + 4,
        sequences_running=running,
        slots=16,
        sequences_waiting=second % 3,
        kv_blocks_held=31 * running,
        kv_blocks_cached=240,
        kv_blocks_free=784 - 31 * running,
        preemptions=7,
        images_waiting=second % 4,
        images_decoding=2,
        prompt_tokens=512 * second,
        generation_tokens=112 * second + second % 7,
        prefix_hit_tokens=411_000,
        prefix_query_tokens=1_846_200,
    )


def _point(end_s: float, number: int) -> HistoryPoint:
    at_s = end_s - 5 * (719 - number)
    wave = 1 + 0.45 * math.sin(at_s / 190) + 0.2 * math.sin(at_s / 37)
    is_idle = 300 < number < 330
    ttft_s, itl_s = 0.16 + 0.09 * wave, 0.014 + 0.006 * wave
    if is_idle:
        return HistoryPoint(time_s=at_s, seconds=5.0)
    return HistoryPoint(
        time_s=at_s,
        seconds=5.0,
        prompt_tokens=int(2500 * wave),
        generation_tokens=int(560 * wave),
        requests=4,
        ttft_p50_s=ttft_s,
        ttft_p95_s=2.1 * ttft_s,
        ttft_p99_s=2.9 * ttft_s,
        itl_p50_s=itl_s,
        itl_p95_s=1.7 * itl_s,
        itl_p99_s=2.6 * itl_s,
    )


def _arena(second: int) -> ArenaState:
    """Most extents stay from second to second; a few at one place change."""
    stable, changing = random.Random(7), random.Random(second)
    nbytes, offset = 512 * _MIB, 0
    extents, holes = [], []
    while offset < nbytes:
        chance = changing if 300 * _MIB < offset < 330 * _MIB else stable
        size = min(chance.choice((1, 2, 2, 3, 9)) * _MIB // 2, nbytes - offset)
        kind = chance.random()
        if kind < 0.22:
            holes.append(size)
        else:
            state = "embed" if kind < 0.82 else "reserved" if kind < 0.88 else "data" if kind < 0.95 else "writing"
            extents.append(ArenaExtent(offset, size, state, int(state != "embed" or chance.random() < 0.2)))
        offset += size
    return ArenaState(
        nbytes=nbytes,
        num_extents=len(extents),
        num_leases=sum(extent.leases for extent in extents),
        num_holes=len(holes),
        free_nbytes=sum(holes),
        largest_hole_nbytes=max(holes),
        cell_nbytes=0,
        extents=tuple(extents),
    )
