"""A request's trace as OpenTelemetry spans: one for the request and one for each of its stages. Pure.

Attributes have the names of OpenTelemetry's semantic conventions for generative AI. They hold numbers, names and ids,
never a text or an image of the request or of its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mmserve.httpserver.request.tracing.trace import TraceRecord
from mmserve.httpserver.stage_times import ENGINE_STAGES, STAGES

Attribute = str | int | float | tuple[str, ...]
MAX_TRACEPARENT_CHARS = 128
_PARENT_STAGE = {"write": "alloc"}


@dataclass(frozen=True)
class StageSpan:
    """Times are nanoseconds since 1970. ``parent``: the stage that contains it, or None: the request."""

    name: str
    start_ns: int
    end_ns: int
    parent: str | None = None


@dataclass(frozen=True)
class RequestSpans:
    """What is exported of one request. ``traceparent``: the client's header, unchecked, or empty."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    failed: bool
    traceparent: str
    stages: tuple[StageSpan, ...]


def spans_of(record: TraceRecord, server_address: str, server_port: int, epoch_ns: int) -> RequestSpans:
    """``epoch_ns``: nanoseconds since 1970 at the time 0 of the monotonic clock."""

    def to_ns(monotonic_s: float) -> int:
        return epoch_ns + round(1e9 * monotonic_s)

    start_s = record.call.arrival_s
    end_s = start_s + record.total_s
    stages = tuple(
        StageSpan(stage, to_ns(begun_s), to_ns(ended_s), _PARENT_STAGE.get(stage))
        for stage, begun_s, ended_s in _placed(record, start_s, end_s)
    )
    address: dict[str, Attribute] = {"server.address": server_address, "server.port": server_port}
    return RequestSpans(
        name=f"chat {record.call.model}",
        start_ns=to_ns(start_s),
        end_ns=to_ns(end_s),
        attributes=_attributes(record) | address,
        failed=record.error_type is not None,
        traceparent=record.traceparent[:MAX_TRACEPARENT_CHARS],
        stages=stages,
    )


def _placed(record: TraceRecord, start_s: float, end_s: float) -> Iterator[tuple[str, float, float]]:
    """(stage, begin, end) of the stages that the request has passed, in order, within the time of the request.

    The HTTP worker saw its own stages end. Those of the engine are placed one behind the other, so that the last ends
    with its last reply.
    """
    seconds, ends = record.times.seconds, dict(record.times.ended_s)
    following_s = end_s
    for stage in reversed(ENGINE_STAGES):
        if stage in seconds:
            ends[stage] = following_s = min(following_s, ends[stage])
            following_s -= seconds[stage]
    for stage in STAGES:
        if stage in seconds:
            ended_s = min(max(ends[stage], start_s), end_s)
            yield stage, max(start_s, ended_s - seconds[stage]), ended_s


def _attributes(record: TraceRecord) -> dict[str, Attribute]:
    call, sampling = record.call, record.call.sampling
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mmserve",
        "gen_ai.output.type": "text",
        "gen_ai.request.model": call.model,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.response.model": call.model,
        "gen_ai.response.id": call.response_id,
        "gen_ai.response.finish_reasons": record.finish_reasons,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "http.route": record.route,
        "mmserve.images": record.num_images,
    }
    if sampling.max_tokens:
        attributes["gen_ai.request.max_tokens"] = sampling.max_tokens
    if sampling.top_k:
        attributes["gen_ai.request.top_k"] = sampling.top_k
    if call.n != 1:
        attributes["gen_ai.request.choice.count"] = call.n
    if record.error_type is not None:
        attributes["error.type"] = record.error_type
    return attributes
