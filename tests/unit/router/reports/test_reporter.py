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
from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.reports.held_beginnings import HeldBeginnings
from mmserve.router.reports.held_pictures import HeldPictures
from mmserve.router.reports.reporter import Reporter

_TIMES = {"image_decode": 0.1, "encode": 0.3, "queue": 0.2, "prefill": 0.5, "decode": 1.5}


def _request(id: str, *, pictures: tuple[int, ...] = (), first: int = 0) -> Any:
    """Of 100 tokens from ``first`` on, named after 32 and after 64 of them. Its pictures are to be encoded."""
    spans = tuple(
        MediaSpan(
            start=index, num_tokens=1, item_id=name, data=Handle(1, 0, 9), embed=Handle(1, 0, 1000), media_index=index
        )
        for index, name in enumerate(pictures)
    )
    return GenerateRequest(
        id=id,
        reply_to=0,
        prompt_ids=array("q", range(first, first + 100)).tobytes(),
        spans=spans,
        sampling=SamplingParams(max_tokens=9),
        arrival_s=0.0,
        pictures=tuple((name, name) for name in pictures),
        beginnings=((first + 1, 32), (first + 2, 64)),
    )


class _Router:
    """A prefix cache of 8 blocks of 16 tokens, and a reporter of it."""

    def __init__(self) -> None:
        self.beginnings = HeldBeginnings(5)
        self.kv = KvCacheManager(8, 16, self.beginnings)
        self.reporter = Reporter(4, HeldPictures(5), self.beginnings, self.kv)

    def compute(self, request: GenerateRequest, reply: TokenReply) -> None:
        tokens = array("q", request.prompt_ids)
        table = self.kv.allocate(len(tokens), self.kv.match_prefix(tokens))
        assert table is not None
        self.kv.cache_full_blocks(table, tokens, len(tokens))
        self.reporter.replied([(0, reply)])
        self.kv.free(table)

    def report(self, *, snapshot: bool = False) -> dict[str, Holdings]:
        return {each.kind: each for each in self.reporter.report(0, 0, snapshot=snapshot).holdings}


def test_a_beginning_is_held_from_the_first_token_on_until_its_blocks_are_evicted() -> None:
    router = _Router()
    assert {kind: (each.added, each.snapshot) for kind, each in router.report().items()} == {
        "pictures": ((), True),
        "blocks": ((), True),
    }
    router.reporter.received([_request("a")])
    assert router.report()["blocks"].added == ()
    router.compute(_request("a"), TokenReply(id="a", token_ids=(4,)))
    assert set(router.report()["blocks"].added) == {1, 2}
    assert router.report()["blocks"] == Holdings("blocks", 5, 3)
    router.reporter.received([_request("b", first=1000)])
    router.compute(_request("b", first=1000), TokenReply(id="b", token_ids=(4,)))
    report = router.report()["blocks"]
    assert (set(report.added), set(report.removed)) == ({1001, 1002}, {1, 2})
    assert set(router.report(snapshot=True)["blocks"].added) == {1001, 1002}


def test_the_beginnings_of_an_embedding_are_held_though_it_has_no_token() -> None:
    router = _Router()
    router.report()
    router.reporter.received([_request("a")])
    router.compute(_request("a"), TokenReply(id="a", embedding=b"1234", finish="length"))
    assert set(router.report()["blocks"].added) == {1, 2}


def _warm(reporter: Reporter) -> None:
    """It has answered a request."""
    reporter.received([_request("first")])
    reporter.replied([(0, TokenReply(id="first", token_ids=(4,), finish="stop", stage_times=_TIMES))])


def test_requests_that_came_before_one_was_answered_cost_nothing_as_they_pay_for_the_start() -> None:
    reporter = _Router().reporter
    reporter.received([_request("a"), _request("b")])
    for id in "ab":
        reporter.replied([(0, TokenReply(id=id, token_ids=(4,), finish="stop", stage_times=_TIMES))])
        assert reporter.report(0, 0).load.prefill_s == 0
    reporter.received([_request("a")])
    reporter.replied([(0, TokenReply(id="a", token_ids=(4,), finish="stop", stage_times=_TIMES))])
    assert reporter.report(0, 0).load.prefill_s == pytest.approx(0.5 / 100)


def test_a_token_costs_what_long_prompts_say_for_short_ones_mostly_wait_for_a_step() -> None:
    reporter = _Router().reporter
    _warm(reporter)
    for id, cached in (("a", 0), ("b", 98)):
        reporter.received([_request(id)])
        reply = TokenReply(id=id, token_ids=(4,), finish="stop", stage_times=_TIMES, num_cached_tokens=cached)
        reporter.replied([(0, reply)])
    assert 0.005 < reporter.report(0, 0).load.prefill_s < 0.006


def test_the_load_is_what_waits_and_what_work_has_cost() -> None:
    reporter = _Router().reporter
    _warm(reporter)
    reporter.received([_request("a", pictures=(7,)), _request("b", pictures=(8, 9))])
    reporter.replied([(0, TokenReply(id="a", token_ids=(4,), finish="stop", stage_times=_TIMES, num_cached_tokens=50))])
    load = reporter.report(3, 4).load
    assert load.in_flight == 1
    assert load.encode_s == pytest.approx(0.4)
    assert load.encoder_wait_s == pytest.approx(2 * 0.4)
    assert load.prefill_s == pytest.approx(0.01)
    assert load.wait_s == pytest.approx(3 * 2.0 / 4)
    assert reporter.report(3, 0).load.wait_s == 0
    assert reporter.report(3, 2).load.wait_s == pytest.approx(3 * 2.0 / 2), "fewer than the slots, for want of memory"


def test_pictures_that_waited_for_room_in_the_arena_are_a_wait_until_none_comes_any_more() -> None:
    """Such requests are in no queue of the router, and few of them are in flight."""
    reporter = _Router().reporter
    reporter.received([msgspec.structs.replace(_request("a", pictures=(7,)), arena_s=3.0)])
    waits = [reporter.report(0, 0).load.encoder_wait_s for _ in range(100)]
    assert 2.5 < waits[0] <= 3.0
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] < 0.05
    reporter.received([msgspec.structs.replace(_request("b", pictures=(8,)), arena_s=3.0, attempt=1)])
    assert reporter.report(0, 0).load.encoder_wait_s < 0.05, "counted with its first attempt"


def test_an_attempt_that_was_replaced_and_an_aborted_request_hold_nothing() -> None:
    router = _Router()
    router.report()
    requests = [_request("a"), _request("b", first=1000)]
    router.reporter.received(requests)
    router.compute(requests[0], TokenReply(id="a", attempt=1, token_ids=(4,)))
    router.compute(requests[1], TokenReply(id="b", finish="abort"))
    report = router.reporter.report(0, 0)
    assert [each.added for each in report.holdings] == [(), ()]
    assert report.load.in_flight == 1


def test_requests_of_an_http_worker_that_died_are_not_in_flight_any_more() -> None:
    """They get no reply. One that was still on its way is not counted; those of the worker's successor are."""
    reporter = _Router().reporter
    reporter.received([_request("a", pictures=(7,)), WorkerDied(worker=0, died_s=1.0)])
    reporter.received([_request("late")])
    assert reporter.report(0, 0).load.in_flight == 0
    reporter.received([msgspec.structs.replace(_request("b"), arrival_s=2.0)])
    assert reporter.report(0, 0).load.in_flight == 1


def test_a_report_survives_its_way() -> None:
    report = _Router().reporter.report(1, 1)
    assert decoded(encoded(report)) == report
