"""From the engine's being ready to the next token of each stream that waited for it."""

from __future__ import annotations

import asyncio

import httpx2

from mmserve.cli.chaos.resumption import EngineWatch, Pause, seconds_to_resume


def test_streams_that_waited_for_the_engine_count_from_its_being_ready() -> None:
    spans = [(9.0, 15.5), (9.5, 15.2), (3.0, 4.0), (15.1, 16.0)]
    pauses = [Pause(start_s, end_s, in_answer=True) for start_s, end_s in spans]
    waits = seconds_to_resume(pauses, [15.0, 40.0])
    assert [round(wait, 3) for wait in waits] == [0.2, 0.5]


def test_a_stream_that_met_two_restarts_counts_from_the_second() -> None:
    assert seconds_to_resume([Pause(9.0, 21.0, in_answer=True)], [15.0, 20.5]) == [0.5]


def test_a_stream_that_waits_for_its_first_token_is_not_resumed() -> None:
    assert seconds_to_resume([Pause(9.0, 15.5, in_answer=False)], [15.0]) == []


def test_the_engine_is_ready_when_it_was_seen_restarting_and_then_ready() -> None:
    seen = ["ready", "starting", "ready", "restarting", "no answer", "restarting", "ready", "ready"]
    pages = iter(seen)

    async def scenario() -> int:
        done = asyncio.Event()

        def handle(request: httpx2.Request) -> httpx2.Response:
            phase = next(pages, None)
            if phase is None:
                done.set()
            if phase == "no answer":
                raise httpx2.ConnectError("this HTTP worker was lost")
            phase = phase or "ready"
            return httpx2.Response(200 if phase == "ready" else 503, json={"phase": phase})

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as http:
            watch = EngineWatch(http, "http://server")
            watching = asyncio.create_task(watch.run())
            await asyncio.wait_for(done.wait(), 10)
            watching.cancel()
        return len(watch.ready_s)

    assert asyncio.run(scenario()) == 1
