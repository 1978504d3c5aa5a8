"""Spans of a request: its stages lie within it, whatever their measured times say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.request.tracing.spans import MAX_TRACEPARENT_CHARS, RequestSpans, spans_of
from mmserve.httpserver.request.tracing.trace import TraceRecord
from mmserve.httpserver.stage_times import STAGES, StageTimes
from mmserve.messages.sampling import SamplingParams

EPOCH_NS = 10**18


def _spans(times: StageTimes, total_s: float = 10.0, **fields: object) -> RequestSpans:
    call = GenerateCall("17ab", "llava", (), (), SamplingParams(max_tokens=0), arrival_s=100.0)
    record = TraceRecord(
        **{
            "call": call,
            "route": "/v1/chat/completions",
            "num_images": 1,
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "finish_reasons": ("stop",),
            "error_type": None,
            "total_s": total_s,
            "times": times,
            **fields,
        }
    )  # type: ignore[arg-type]
    return spans_of(record, "0.0.0.0", 8000, EPOCH_NS)


def _seconds(spans: RequestSpans) -> dict[str, tuple[float, float]]:
    """Stage -> begin and end, from the request's arrival."""
    return {
        stage.name: ((stage.start_ns - spans.start_ns) / 1e9, (stage.end_ns - spans.start_ns) / 1e9)
        for stage in spans.stages
    }


def test_stages_of_the_worker_end_when_it_saw_that_and_those_of_the_engine_before_its_last_reply() -> None:
    spans = _spans(
        StageTimes(
            {"alloc": 2.0, "write": 0.5, "queue": 1.0, "prefill": 2.0, "decode": 3.0, "send": 0.5},
            {"alloc": 103.0, "write": 102.5, "queue": 109.5, "prefill": 109.5, "decode": 109.5, "send": 110.0},
        )
    )
    assert (spans.start_ns, spans.end_ns) == (EPOCH_NS + 100 * 10**9, EPOCH_NS + 110 * 10**9)
    assert _seconds(spans) == {
        "alloc": (1.0, 3.0),
        "write": (2.0, 2.5),
        "queue": (3.5, 4.5),
        "prefill": (4.5, 6.5),
        "decode": (6.5, 9.5),
        "send": (9.5, 10.0),
    }
    assert {stage.name: stage.parent for stage in spans.stages if stage.parent} == {"write": "alloc"}


def test_fields_that_the_client_did_not_set_are_left_out() -> None:
    spans = _spans(StageTimes(), error_type="overloaded", finish_reasons=(), traceparent="0" * 10_000)
    assert spans.failed
    assert spans.attributes["error.type"] == "overloaded"
    assert not {"gen_ai.request.max_tokens", "gen_ai.request.top_k", "gen_ai.request.choice.count"} & set(
        spans.attributes
    )
    assert len(spans.traceparent) == MAX_TRACEPARENT_CHARS


_TIMES = st.dictionaries(st.sampled_from(STAGES), st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)))


@given(_TIMES, st.floats(0, 1e4))
def test_stages_lie_within_their_request(times: dict[str, tuple[float, float]], total_s: float) -> None:
    seconds = {stage: length for stage, (length, _) in times.items()}
    ends = {stage: end for stage, (_, end) in times.items()}
    spans = _spans(StageTimes(seconds, ends), total_s)
    assert [stage.name for stage in spans.stages] == [stage for stage in STAGES if stage in times]
    for stage in spans.stages:
        assert spans.start_ns <= stage.start_ns <= stage.end_ns <= spans.end_ns
