"""The gate, the key, the defaults, the shield and the stream between maker and reader."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from mmserve.httpserver.http.auth import ApiKeyAuth
from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.httpserver.output.deltas import DeltaStream, TextDelta, Usage
from mmserve.httpserver.sampling_defaults import SamplingDefaults, read_sampling_defaults
from mmserve.messages.reply import ServerPhase
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.errors import MmserveError, Overloaded, Unauthorized, Unavailable
from mmserve.runtime.uncancelled import to_completion


class Recorded:
    def __init__(self) -> None:
        self.samples: list[tuple[str, float, tuple[str, ...]]] = []

    def add(self, name: str, value: float, *labels: str) -> None:
        self.samples.append((name, value, labels))


def make_gate(limit: int = 1) -> tuple[AdmissionControl, Recorded]:
    metrics = Recorded()
    return AdmissionControl(limit, cast(MetricsClient, metrics)), metrics


def test_the_gate_says_the_phase_until_the_server_is_ready() -> None:
    gate, metrics = make_gate()
    gate.phase = ServerPhase(phase="loading", ready=False, detail="42 %")
    with pytest.raises(Unavailable, match="loading: 42 %") as refused, gate.admit():
        pass
    assert refused.value.retry_after_s
    assert metrics.samples == [("admission_rejections", 1, ("loading",))]


def test_the_gate_admits_a_bounded_number_and_takes_tickets_back() -> None:
    gate, metrics = make_gate(limit=1)
    gate.phase = ServerPhase(phase="ready", ready=True)
    with gate.admit():
        with pytest.raises(Overloaded) as refused:
            gate.check()
        assert refused.value.retry_after_s
    with gate.admit():
        assert gate.in_flight == 1
    assert metrics.samples[-1] == ("num_requests_in_flight", 0, ())


def test_a_draining_gate_admits_nothing() -> None:
    gate, _ = make_gate()
    gate.phase = ServerPhase(phase="ready", ready=True)
    gate.drain()
    assert not gate.ready
    with pytest.raises(Unavailable, match="draining"):
        gate.check()


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer secret"},
        {"authorization": "bearer  secret "},
        {"x-api-key": "secret"},
    ],
)
def test_the_key_opens(headers: dict[str, str]) -> None:
    ApiKeyAuth("secret").check("/v1/models", headers)


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer no"}, {"authorization": "Basic secret"}, {"x-api-key": ""}]
)
def test_anything_else_does_not(headers: dict[str, str]) -> None:
    guard = ApiKeyAuth("secret")
    for path in ("/v1/models", "/metrics", "/docs", "/health/x"):
        with pytest.raises(Unauthorized):
            guard.check(path, headers)
    for path in ("/health", "/live", "/ready"):
        guard.check(path, headers)
    ApiKeyAuth(None).check("/v1/models", headers)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, SamplingDefaults()),
        ("not json", SamplingDefaults()),
        ('{"eos_token_id": 2, "transformers_version": "5"}', SamplingDefaults()),
        ('{"temperature": 0.6, "top_p": 0.9, "top_k": null}', SamplingDefaults(temperature=0.6, top_p=0.9)),
        ('{"do_sample": true, "top_k": 20}', SamplingDefaults(top_k=20)),
        ('{"do_sample": false}', SamplingDefaults(temperature=0.0)),
        ('{"do_sample": false, "temperature": 0.6}', SamplingDefaults(temperature=0.0)),
        ('{"repetition_penalty": 1.05, "min_p": 0.1}', SamplingDefaults(repetition_penalty=1.05, min_p=0.1)),
    ],
)
def test_only_what_generation_config_says_counts(tmp_path: Path, content: str | None, expected: object) -> None:
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    assert read_sampling_defaults(str(tmp_path)) == expected


def test_shielded_work_ends_and_then_the_cancellation_arrives() -> None:
    async def test() -> None:
        release, done = asyncio.Event(), []

        async def work() -> None:
            await release.wait()
            done.append(True)

        task = asyncio.create_task(to_completion(work()))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done

    asyncio.run(test())


def test_shielded_work_returns_and_raises_as_itself() -> None:
    async def fails() -> None:
        raise KeyError("x")

    async def test() -> None:
        assert await to_completion(asyncio.sleep(0, 5)) == 5
        with pytest.raises(KeyError):
            await to_completion(fails())

    asyncio.run(test())


def test_the_stream_ends_when_every_choice_has_finished_and_counts_usage() -> None:
    async def test() -> None:
        stream = DeltaStream(2)
        stream.open(prompt_tokens=10, image_tokens=4)
        stream.push(TextDelta(0, "a", 1, None, 3))
        stream.push(TextDelta(1, "b", 2, "stop", 9))  # it found what the first one had computed
        assert not stream.complete
        stream.push(TextDelta(0, "c", 1, "length"))
        assert stream.complete
        stream.fail(MmserveError("too late to matter"))
        assert [delta.text async for delta in stream] == ["a", "b", "c"]
        assert stream.usage == Usage(10, 4, 3, 4)

    asyncio.run(test())


def test_a_failed_stream_raises_after_what_was_said() -> None:
    async def test() -> None:
        stream = DeltaStream(1)
        stream.push(TextDelta(0, "a", 1))
        stream.fail(Unavailable("gone"))
        assert (await anext(stream)).text == "a"
        with pytest.raises(Unavailable):
            await anext(stream)

    asyncio.run(test())
