from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from mmserve.cluster.scale.reports import Holdings, decoded, encoded
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest, WorkerDied
from mmserve.messages.sampling import SamplingParams
from mmserve.router.reports.reporter import Reporter

_TIMES = {"image_decode": 0.1, "encode": 0.3, "queue": 0.2, "prefill": 0.5, "decode": 1.5}


def _request(id: str, *, pictures: tuple[int, ...] = (), blocks: tuple[int, ...] = (), tokens: int = 100) -> Any:
    spans = tuple(
        MediaSpan(
            start=index, num_tokens=1, item_id=name, data=Handle(1, 0, 9), embed=Handle(1, 0, 1000), media_index=index
        )
        for index, name in enumerate(pictures)
    )
    return GenerateRequest(
        id=id,
        reply_to=0,
        prompt_ids=array("q", range(tokens)).tobytes(),
        spans=spans,
        sampling=SamplingParams(max_tokens=9),
        arrival_s=0.0,
        pictures=pictures,
        blocks=blocks,
    )


def _held(reporter: Reporter) -> dict[str, Holdings]:
    return {each.kind: each for each in reporter.report(0, 0).holdings}


def test_a_request_is_held_from_its_first_token_on() -> None:
    reporter = Reporter(8, 10_000, 1000, 5)
    first = _held(reporter)
    assert {kind: (each.added, each.snapshot) for kind, each in first.items()} == {
        "pictures": ((), True),
        "blocks": ((), True),
    }
    reporter.received([_request("a", pictures=(7,), blocks=(1, 2))])
    assert _held(reporter) == {}
    reporter.replied([(0, TokenReply(id="a", token_ids=(4,)))])
    held = _held(reporter)
    assert held["pictures"].added == (7,)
    assert set(held["blocks"].added) == {1, 2}
    assert _held(reporter) == {}


def test_the_pictures_of_an_embedding_are_held_though_it_has_no_token() -> None:
    reporter = Reporter(8, 10_000, 1000, 5)
    _held(reporter)
    reporter.received([_request("a", pictures=(7,))])
    reporter.replied([(0, TokenReply(id="a", embedding=b"1234", finish="length"))])
    assert _held(reporter)["pictures"].added == (7,)


def test_each_cache_holds_only_what_fits() -> None:
    reporter = Reporter(8, 1500, 150, 5)
    for id, name in (("a", 1), ("b", 2)):
        reporter.received([_request(id, pictures=(name,), blocks=(name + 10,))])
        reporter.replied([(0, TokenReply(id=id, token_ids=(4,)))])
    held = _held(reporter)
    assert held["pictures"].added == (2,)
    assert held["blocks"].added == (12,)


def test_of_a_prompt_the_end_is_forgotten_first_as_the_prefix_cache_does() -> None:
    """Fronts believe that who holds a block holds those before it."""
    reporter = Reporter(8, 10_000, 150, 5)
    for id, blocks in (("a", (1, 2, 3, 4)), ("b", (11, 12))):
        reporter.received([_request(id, blocks=blocks)])
        reporter.replied([(0, TokenReply(id=id, token_ids=(4,)))])
    assert set(_held(reporter)["blocks"].added) == {1, 2, 11, 12}


def test_the_load_is_what_waits_and_what_work_has_cost() -> None:
    reporter = Reporter(4, 10_000, 1000, 5)
    reporter.received([_request("a", pictures=(7,)), _request("b", pictures=(8, 9))])
    reporter.replied([(0, TokenReply(id="a", token_ids=(4,), finish="stop", stage_times=_TIMES, num_cached_tokens=50))])
    load = reporter.report(3, 4).load
    assert load.in_flight == 1
    assert load.encode_s == pytest.approx(0.4)
    assert load.encoder_wait_s == pytest.approx(2 * 0.4)
    assert load.prefill_s == pytest.approx(0.01)
    assert load.wait_s == pytest.approx(3 * 2.0 / 4)
    assert reporter.report(3, 2).load.wait_s == 0


def test_pictures_that_waited_for_room_in_the_arena_are_a_wait_until_none_comes_any_more() -> None:
    """Such requests are in no queue of the router, and few of them are in flight."""
    reporter = Reporter(4, 10_000, 1000, 5)
    reporter.received([msgspec.structs.replace(_request("a", pictures=(7,)), arena_s=3.0)])
    waits = [reporter.report(0, 1).load.encoder_wait_s for _ in range(100)]
    assert 2.5 < waits[0] <= 3.0
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] < 0.05
    reporter.received([msgspec.structs.replace(_request("b", pictures=(8,)), arena_s=3.0, attempt=1)])
    assert reporter.report(0, 1).load.encoder_wait_s < 0.05, "counted with its first attempt"


def test_an_attempt_that_was_replaced_and_an_aborted_request_hold_nothing() -> None:
    reporter = Reporter(4, 10_000, 1000, 5)
    _held(reporter)
    reporter.received([_request("a", blocks=(1,)), _request("b", blocks=(2,))])
    reporter.replied([(0, TokenReply(id="a", attempt=1, token_ids=(4,))), (0, TokenReply(id="b", finish="abort"))])
    report = reporter.report(0, 0)
    assert report.holdings == ()
    assert report.load.in_flight == 1


def test_requests_of_an_http_worker_that_died_are_not_in_flight_any_more() -> None:
    """They get no reply. One that was still on its way is not counted; those of the worker's successor are."""
    reporter = Reporter(4, 10_000, 1000, 5)
    reporter.received([_request("a", pictures=(7,)), WorkerDied(worker=0, died_s=1.0)])
    reporter.received([_request("late")])
    assert reporter.report(0, 0).load.in_flight == 0
    reporter.received([msgspec.structs.replace(_request("b"), arrival_s=2.0)])
    assert reporter.report(0, 0).load.in_flight == 1


def test_a_report_survives_its_way() -> None:
    report = Reporter(4, 10_000, 1000, 2**62 - 1).report(1, 1)
    assert decoded(encoded(report)) == report
