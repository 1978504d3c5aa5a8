"""The same requests without HTTP: a closed loop in the process of the pipeline. Prompts are tokens beforehand."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.on_openvino.engine import Engine, News, Pipeline, Request


@dataclass
class Times:
    """Of one request, in seconds; the fields of mmserve.cli.bench.client.Record."""

    start_s: float
    prompt_tokens: int
    ttft_s: float = 0.0
    output_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    error: str = ""


def run(pipeline: Pipeline, requests: Sequence[Request], clients: int) -> dict[str, Any]:
    """Each client sends its next request when its last has ended. Returns the records and the wall time."""
    started_s = time.perf_counter()
    loop = _Loop(deque(requests), clients)
    Engine(pipeline, loop, loop.deliver).run()
    return {"records": [vars(record) for record in loop.records.values()], "wall_s": time.perf_counter() - started_s}


@dataclass
class _Loop:
    """The engine's inbox: gives a request whenever a client is free."""

    requests: deque[Request]
    free_clients: int
    records: dict[int, Times] = field(default_factory=dict)
    _last_s: dict[int, float] = field(default_factory=dict)

    def poll(self) -> bool:
        return bool(self.requests and self.free_clients)

    def recv(self) -> Request | None:
        if not self.requests:
            return None
        self.free_clients -= 1
        request, now_s = self.requests.popleft(), time.perf_counter()
        self.records[request.number] = Times(now_s, len(request.ids))
        self._last_s[request.number] = now_s
        return request

    def deliver(self, news: Sequence[News]) -> None:
        now_s = time.perf_counter()
        for each in news:
            self._record(each, now_s)
            self.free_clients += each.has_ended

    def _record(self, news: News, now_s: float) -> None:
        record, gap_s = self.records[news.number], now_s - self._last_s[news.number]
        record.error = news.error
        if news.tokens:
            if record.output_tokens:
                record.gaps_s.append(gap_s)
            else:
                record.ttft_s = gap_s
            record.output_tokens += len(news.tokens)
            self._last_s[news.number] = now_s
