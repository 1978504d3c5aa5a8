"""The small server around OpenVINO without OpenVINO: prompts, events, and the engine with a pipeline that counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.load.named import WORKLOADS
from benchmarks.load.workload import bodies
from benchmarks.peers.on_openvino import in_process
from benchmarks.peers.on_openvino.chat import BadRequest, asked, error_event, last_events, text_event
from benchmarks.peers.on_openvino.engine import Engine, News, Request
from benchmarks.peers.on_openvino.head import Head, parse
from mmserve.cli.bench.client import Record, _Reader

BODY = {
    "messages": [{"role": "user", "content": "question"}],
    "max_tokens": 7,
    "temperature": 0,
    "stream": True,
    "ignore_eos": True,
}


def template(messages: Sequence[dict[str, Any]], begins_answer: bool) -> str:
    return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<assistant>" * begins_answer


def test_a_prompt_ends_where_the_answer_begins() -> None:
    found = asked(BODY)
    assert (found.prompt(template), found.max_tokens) == ("<user>question<assistant>", 7)


def test_a_continued_message_is_the_beginning_of_the_answer() -> None:
    messages = [*BODY["messages"], {"role": "assistant", "content": "Once"}]  # type: ignore[misc]
    found = asked(BODY | {"messages": messages, "continue_final_message": True})
    assert found.prompt(template) == "<user>question<assistant>Once"


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"stream": False},
        {"ignore_eos": False},
        {"max_tokens": None},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
)
def test_what_is_not_measured_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        asked(BODY | change)


def test_the_text_loads_are_served() -> None:
    for load in WORKLOADS.values():
        if not load.images:
            for body in bodies(load, "m", seed=1, extra={"ignore_eos": True}):
                assert asked(body).max_tokens == load.output_tokens


def test_events_say_what_the_load_generator_reads() -> None:
    record = Record()
    reader = _Reader(record, from_s=0.0)
    for now_s, event in enumerate((text_event("one"), text_event(" zwö"), last_events(12, 5)), 1):
        for line in event.splitlines():
            reader.read(line, float(now_s))
    assert (record.ttft_s, record.gaps_s) == (1.0, [1.0])
    assert (record.prompt_tokens, record.output_tokens, record.error) == (12, 5, "")
    reader.read(error_event("no room").splitlines()[0], 9.0)
    assert "no room" in record.error


def test_the_head_of_a_request() -> None:
    assert parse(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n") == Head(
        "POST", "/v1/chat/completions", 12
    )
    assert parse(b"GET /health HTTP/1.1\r\n\r\n").content_length == 0


@dataclass
class Output:
    generated_ids: Sequence[int]


@dataclass
class CountingHandle:
    """Gets the next number in each step."""

    request: Request
    unread: list[int] = field(default_factory=list)
    num_steps: int = 0

    def can_read(self) -> bool:
        return bool(self.unread)

    def read(self) -> Mapping[int, Output]:
        tokens, self.unread = self.unread, []
        return {0: Output(tokens)}


@dataclass
class CountingPipeline:
    """Every request gets one token a step, but one of number 13, which has no room."""

    handles: list[CountingHandle] = field(default_factory=list)
    together: list[int] = field(default_factory=list)

    def add(self, request: Request) -> CountingHandle:
        self.handles.append(CountingHandle(request))
        return self.handles[-1]

    def step(self) -> None:
        live = [handle for handle in self.handles if handle.num_steps < handle.request.max_tokens]
        self.together.append(len(live))
        for handle in live:
            handle.num_steps += 1
            if not self.is_ignored(handle):
                handle.unread.append(handle.num_steps)

    def is_ignored(self, handle: Any) -> bool:
        return bool(handle.request.number == 13)


@dataclass
class List:
    """An inbox with all requests at once, and no more when they have ended."""

    requests: list[Request]

    def poll(self) -> bool:
        return bool(self.requests)

    def recv(self) -> Request | None:
        return self.requests.pop(0) if self.requests else None


def test_the_engine_tells_the_tokens_of_each_step_and_the_end() -> None:
    told: list[Sequence[News]] = []
    inbox = List([Request(1, [5], 2), Request(2, [5, 6], 1), Request(13, [5], 1)])
    Engine(CountingPipeline(), inbox, told.append).run()
    assert told == [
        [
            News(1, 1, [1]),
            News(2, 2, [1], has_ended=True),
            News(13, 1, [], has_ended=True, error="the KV cache has no room for it"),
        ],
        [News(1, 1, [2], has_ended=True)],
    ]


def test_in_process_each_client_has_one_request_at_a_time() -> None:
    pipeline = CountingPipeline()
    done = in_process.run(pipeline, [Request(number, [5, 6], 3) for number in range(5)], clients=2)
    assert pipeline.together == [2] * 6 + [1] * 3
    records = [Record(**record) for record in done["records"]]
    assert [(each.prompt_tokens, each.output_tokens, len(each.gaps_s)) for each in records] == [(2, 3, 2)] * 5
    assert all(each.ttft_s > 0 for each in records)
    assert done["wall_s"] >= max(sum([each.ttft_s, *each.gaps_s]) for each in records)
    assert json.loads(json.dumps(done)) == done
