"""A front before replicas that fail: streams go on, requests are sent elsewhere, pictures stay where they are."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from mmserve.cluster.front.metrics import FrontMetrics
from mmserve.cluster.front.run import Front
from mmserve.cluster.scale.reports import Load
from mmserve.httpserver.api.errors import response_to
from mmserve.httpserver.api.smallest_bodies import SMALLEST_BODIES
from mmserve.httpserver.http.auth import ApiKeyAuth
from mmserve.httpserver.http.browser_guard import BrowserGuard
from mmserve.httpserver.http.middleware import RequestMiddleware
from mmserve.messages.relay import RELAY_HEADER, SERVER_HEADER
from tests.fakes.http.http_worker import run
from tests.fakes.http.replicas import TEXT, Died, FakeReplica, front_of

CHAT = "/v1/chat/completions"
WHOLE = "".join(f"data: {letter}\n\n" for letter in TEXT) + "data: [DONE]\n\n"


async def _post(url: str, body: dict[str, Any], path: str = CHAT, **headers: str) -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.text(), {name.lower(): value for name, value in answer.headers.items()}


@pytest.mark.parametrize("how", ["", "breaks_event", "damages", "gives_up"])
def test_a_stream_goes_on_at_another_replica_after_any_event(how: str) -> None:
    async def test() -> None:
        for dies_after in (0, 1, len(TEXT) - 1):
            dying, other = FakeReplica(dies_after=dies_after, **{how: True} if how else {}), FakeReplica()
            async with front_of(dying, other) as (url, front):
                for _ in range(8):  # until one was sent to the one that dies
                    status, text, _ = await _post(url, {"stream": True})
                    assert (status, text) == (200, WHOLE)
                    if dying.relays:
                        break
                assert dying.relays, "both replicas are asked"
                first, last = dying.relays[0], other.relays[-1]
                assert (last.request_id, last.created_s) == (first.request_id, first.created_s)
                assert last.num_events == dies_after
                assert len(other.sampled[-1]) == dies_after + (how == "breaks_event")
                assert front.metrics.value("resumed") == 1

    run(test)


def test_a_stream_goes_on_where_the_same_text_is_computed_and_nowhere_else() -> None:
    async def test() -> None:
        dying, equal = FakeReplica(dies_after=3, then_refuses=True, numbers="a"), FakeReplica(numbers="a")
        others = [FakeReplica(numbers=name) for name in "bcd"]
        async with front_of(dying, *others, equal) as (url, _):
            while not dying.relays:
                status, text, headers = await _post(url, {"stream": True})
                assert (status, text) == (200, WHOLE)
                assert SERVER_HEADER not in headers
            assert len(equal.sampled[-1]) == 3
            assert not any(sampled for each in others for sampled in each.sampled)

    run(test)


def test_names_are_each_keys_own_once_a_replica_has_said_that_caches_are() -> None:
    async def test() -> None:
        async def names(url: str, key: str) -> list[int]:
            before = len(replica.relays)
            await _post(url, {"stream": True, "messages": ["x" * 600]}, authorization=f"Bearer {key}")
            return [*replica.relays[before].blocks]

        for by_key in (False, True):
            replica = FakeReplica(caches_by_key=by_key)
            async with front_of(replica) as (url, _):
                await names(url, "alice")
                assert (await names(url, "alice") == await names(url, "bob")) == (not by_key)

    run(test)


def test_streams_of_responses_move_too_and_an_error_has_the_next_number() -> None:
    async def test() -> None:
        dying, other = FakeReplica(dies_after=3), FakeReplica()
        async with front_of(dying, other) as (url, _):
            while not dying.relays:
                assert (await _post(url, {"stream": True}, "/v1/responses"))[:2] == (200, WHOLE)
        dying = FakeReplica(dies_after=3, then_refuses=True)
        async with front_of(dying, patience_s=0.0) as (url, _):
            text = (await _post(url, {"stream": True}, "/v1/responses"))[1]
            *shown, error, done, rest = text.split("\n\n")
            assert (shown, done, rest) == (["data: h", "data: e", "data: l"], "data: [DONE]", "")
            assert error.startswith('event: error\ndata: {"type":"error","sequence_number":3,')

    run(test)


def test_a_response_in_the_background_is_asked_for_once() -> None:
    async def test() -> None:
        replicas = [FakeReplica(dies_after=0) for _ in range(3)]
        async with front_of(*replicas) as (url, _):
            with pytest.raises(aiohttp.ClientError):
                await _post(url, {"input": "x", "background": True}, "/v1/responses")
            assert sum(len(each.paths) for each in replicas) == 1

    run(test)


def test_a_stream_that_no_replica_can_go_on_with_ends_with_an_error_that_says_so() -> None:
    async def test() -> None:
        dying, other = FakeReplica(dies_after=3, then_refuses=True, numbers="a"), FakeReplica(numbers="b")
        async with front_of(dying, other, patience_s=0.0) as (url, _):
            while not dying.relays:
                status, text, _ = await _post(url, {"stream": True})
                assert status == 200
                assert text == WHOLE or "computes the same text" in text
            assert text.startswith("data: h\n\ndata: e\n\ndata: l\n\ndata: {")
        early, other = FakeReplica(dies_after=0, then_refuses=True, numbers="a"), FakeReplica(numbers="b")
        async with front_of(early, other) as (url, _):
            while not early.relays:
                assert (await _post(url, {"stream": True}))[1] == WHOLE, "nothing of it was sent"

    run(test)


def test_a_stream_is_given_up_at_once_when_all_would_compute_another_text() -> None:
    async def test() -> None:
        dying, other = FakeReplica(dies_after=3, numbers="a", becomes="c"), FakeReplica(numbers="b")
        async with front_of(dying, other, patience_s=3600.0) as (url, _), asyncio.timeout(20):
            while not dying.relays:
                text = (await _post(url, {"stream": True}))[1]
            assert "computes the same text" in text
            assert (dying.misdirected, other.misdirected) == (1, 1)

    run(test)


def test_a_stream_that_waits_for_an_equal_replica_asks_no_other_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmserve.cluster.front.attempts._AGAIN_S", 0.01)

    async def test() -> None:
        dying, other = FakeReplica(dies_after=3, then_refuses=True, numbers="a"), FakeReplica(numbers="b")
        equal = FakeReplica(status=429, refuses=4, numbers="a")
        async with front_of(dying, other, equal) as (url, _), asyncio.timeout(20):
            while not dying.relays:
                equal.refuses = 4
                assert (await _post(url, {"stream": True}))[:2] == (200, WHOLE)
            assert len(equal.sampled[-1]) == 3
            assert other.misdirected <= 1

    run(test)


def test_a_whole_answer_that_breaks_off_is_asked_for_elsewhere() -> None:
    async def test() -> None:
        dying, other = FakeReplica(dies_after=0), FakeReplica()
        async with front_of(dying, other) as (url, _):
            for _ in range(8):
                assert (await _post(url, {}))[:2] == (200, TEXT)
            assert dying.relays

    run(test)


def test_replicas_that_cannot_be_reached_cost_no_request_and_are_left_alone_for_a_while() -> None:
    async def test() -> None:
        async with front_of(FakeReplica(), unreachable=3) as (url, front):
            for _ in range(10):
                assert (await _post(url, {"stream": True}))[1] == WHOLE
            failed = sum(front.metrics.value("failed_attempts", f"replica{number}") for number in (1, 2, 3))
            assert failed <= 3

    run(test)


def test_a_refusal_is_asked_elsewhere_and_the_last_one_is_the_clients() -> None:
    async def test() -> None:
        busy, other = FakeReplica(status=429), FakeReplica()
        async with front_of(busy, other) as (url, _):
            for _ in range(8):
                assert (await _post(url, {"stream": True}))[0] == 200
            assert busy.paths
        async with front_of(busy, FakeReplica(status=429)) as (url, _):
            status, text, headers = await _post(url, {"stream": True})
            assert (status, text, headers["retry-after"]) == (429, "busy", "7")

    run(test)


def test_a_request_that_kills_replicas_does_not_kill_them_all() -> None:
    async def test() -> None:
        replicas = [FakeReplica(dies_after=2) for _ in range(6)]
        async with front_of(*replicas) as (url, _):
            status, text, _ = await _post(url, {"stream": True})
            assert status == 200
            assert text.startswith("data: h\n\ndata: e\n\ndata: {")
            assert text.endswith("data: [DONE]\n\n")
            assert sum(len(each.relays) for each in replicas) <= 4
        status, text, _ = await _lone_failure()
        assert status == 503
        assert "no replica could answer" in text

    run(test)


async def _lone_failure() -> tuple[int, str, dict[str, str]]:
    async with front_of(unreachable=1) as (url, _):
        return await _post(url, {"stream": True})


def test_the_same_picture_goes_to_one_replica_and_pictures_spread() -> None:
    async def test() -> None:
        replicas = [FakeReplica() for _ in range(4)]
        async with front_of(*replicas) as (url, _):
            chosen = []
            for number in range(6):
                picture = {"url": f"data:image/png;base64,{number:04d}" + "A" * 20_000}
                for _ in range(2):
                    before = [len(each.relays) for each in replicas]
                    await _post(url, {"messages": [{"image_url": picture}]})
                    (index,) = (i for i, each in enumerate(replicas) if len(each.relays) > before[i])
                    chosen.append(index)
            assert chosen[::2] == chosen[1::2]
            assert len(set(chosen)) > 2
            assert all(len(relay.pictures) == 1 for each in replicas for relay in each.relays)

    run(test)


def test_only_the_front_speaks_in_its_headers_and_the_clients_others_are_kept() -> None:
    async def test() -> None:
        replica = FakeReplica()
        async with front_of(replica) as (url, _):
            sent = {
                RELAY_HEADER: "forged",
                "authorization": "Bearer key",
                "x-request-id": "mine",
                "connection": "close",
            }
            _, _, headers = await _post(url, {}, **sent)
            assert replica.relays[0].request_id != "mine", "responses are stored by ids that clients do not choose"
            seen = replica.headers[0]
            assert (seen["authorization"], seen["x-request-id"]) == ("Bearer key", "mine")
            assert headers["x-request-id"] == "mine"

    run(test)


def _guarded(replica: FakeReplica) -> RequestMiddleware:
    """With the checks of a server without API keys."""
    guard = BrowserGuard("127.0.0.1", (), ())
    return RequestMiddleware(replica, ApiKeyAuth(()), guard, FrontMetrics(), response_to, lambda scope: True)


def test_pages_of_the_front_may_ask_and_those_of_other_sites_only_where_the_front_allows_them() -> None:
    """A replica sees its own address as Host, so Origin would be foreign to it wherever the page is from."""

    async def test() -> None:
        allowed, other = "https://a.example", "https://b.example"
        async with front_of(_guarded(FakeReplica())) as (url, _):
            assert (await _post(url, {"stream": True}, origin=url))[:2] == (200, WHOLE)
            assert (await _post(url, {"stream": True}, origin=allowed))[0] == 403
        async with front_of(_guarded(FakeReplica()), allowed_origins=(allowed,)) as (url, _):
            status, text, headers = await _post(url, {"stream": True}, origin=allowed)
            assert (status, text, headers["access-control-allow-origin"]) == (200, WHOLE, allowed)
            assert (await _post(url, {"stream": True}, origin=other))[0] == 403
            asks = {"origin": allowed, "access-control-request-method": "POST"}
            async with aiohttp.ClientSession() as session, session.options(url + CHAT, headers=asks) as answer:
                assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, allowed)

    run(test)


def test_other_paths_are_forwarded_and_what_may_act_is_not_sent_twice() -> None:
    async def test() -> None:
        replica, dying = FakeReplica(), FakeReplica(dies_after=0)
        async with front_of(replica) as (url, _), aiohttp.ClientSession() as session:
            async with session.get(f"{url}/v1/models?x=1") as answer:
                assert await answer.json() == {"path": "/v1/models"}
            async with session.head(f"{url}/v1/models") as answer:
                assert answer.status == 200
            async with session.get(f"{url}/metrics") as answer:
                assert "mmserve_front:replicas 1" in await answer.text()
        async with front_of(dying, dying) as (url, _):
            with pytest.raises(aiohttp.ClientPayloadError):
                await _post(url, {}, "/v1/files")
            assert dying.paths == ["/v1/files"]

    run(test)


def test_what_is_stored_is_found_wherever_it_is() -> None:
    async def test() -> None:
        paths = ("/v1/responses/r1", "/v1/files/f1/content", "/v1/batches/b1")
        async with front_of(*(FakeReplica(status=404) for _ in range(3)), FakeReplica()) as (url, front):
            async with aiohttp.ClientSession() as session:
                for path in paths * 3:
                    async with session.get(url + path) as answer:
                        assert await answer.json() == {"path": path}
            assert (await _post(url, {"input_file_id": "f1"}, "/v1/batches"))[0] == 200
            body = {"stream": True, "previous_response_id": "r1"}
            assert (await _post(url, body, "/v1/responses"))[:2] == (200, WHOLE)
            assert not front.metrics.value("failed_attempts", "replica0")
        missing, busy, other = FakeReplica(status=404), FakeReplica(status=503), FakeReplica()
        for replicas, expected in (((missing, missing), 404), ((missing, busy), 503)):
            async with front_of(*replicas) as (url, _):
                assert (await _post(url, {}, "/v1/batches/b1/cancel"))[0] == expected
        async with front_of(missing, other) as (url, front):
            for _ in range(8):
                front.replicas.failed("replica1")
                assert (await _post(url, {"previous_response_id": "r1"}, "/v1/responses"))[0] == 200, (
                    "it has failed others"
                )
        async with front_of(missing, other) as (url, _):
            while not missing.paths or missing.paths[-1] != CHAT:
                status, _, _ = await _post(url, {})
            assert status == 404, "a model that is not served is asked for once"

    run(test)


def test_nobody_says_that_a_thing_does_not_exist_which_one_that_is_gone_may_have() -> None:
    async def test() -> None:
        missing = FakeReplica(status=404)
        async with front_of(missing, unreachable=1) as (url, _), aiohttp.ClientSession() as session:
            for _ in range(8):
                async with session.get(f"{url}/v1/files/f1") as answer:
                    assert answer.status == 503
        async with front_of(missing, dying=1) as (url, front):
            front.replicas.failed("replica1")  # another request, so this one is asked last
            assert (await _post(url, {}, "/v1/batches"))[0] == 503, "it may have been done"
            assert missing.paths[-1] == "/v1/batches"

    run(test)


def test_what_only_asks_is_asked_elsewhere_whatever_its_path() -> None:
    async def test() -> None:
        for path in SMALLEST_BODIES:
            dying, other = FakeReplica(dies_after=0), FakeReplica()
            async with front_of(dying, other) as (url, _):
                while not dying.paths:
                    assert (await _post(url, {}, path))[0] == 200
                assert other.paths == [path] * len(other.paths)

    run(test)


def test_an_answer_that_is_passed_on_as_it_comes_breaks_off_where_its_replica_does() -> None:
    """Nothing of another replica's answer, and no event of an error, follows what the client has."""

    async def breaks_off(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise Died

    async def test() -> None:
        async with front_of(breaks_off, breaks_off) as (url, front), aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientPayloadError):
                async with session.get(f"{url}/v1/files/a/content") as answer:
                    await answer.read()
            assert sum(front.metrics.value("failed_attempts", f"replica{number}") for number in (0, 1)) == 1

    run(test)


def test_a_client_that_leaves_ends_its_request_at_the_replica() -> None:
    async def test() -> None:
        replica = FakeReplica(holds=True)
        async with front_of(replica) as (url, _), aiohttp.ClientSession() as session:
            async with session.post(url + CHAT, json={"stream": True}) as answer:
                assert await answer.content.readexactly(9) == b"data: h\n\n"
                answer.close()
            async with asyncio.timeout(10):
                await replica.disconnected.wait()

    run(test)


def test_requests_without_anything_to_find_spread_by_what_the_front_has_sent() -> None:
    async def test() -> None:
        replicas = [FakeReplica() for _ in range(3)]
        async with front_of(*replicas) as (url, front):
            await asyncio.gather(*(_post(url, {}) for _ in range(60)))
            counts = Counter({index: len(each.relays) for index, each in enumerate(replicas)})
            assert min(counts.values()) >= 5
            assert sum(front.replicas.cluster.decisions.values()) == 60

    run(test)


def test_what_a_replica_has_lost_waits_for_others_that_refuse_it() -> None:
    async def test() -> None:
        for dies_after in (0, 3):
            dying = FakeReplica(dies_after=dies_after, then_refuses=True)
            busy = FakeReplica(status=429, refuses=4)
            async with front_of(dying, busy) as (url, front):
                assert (await _post(url, {"stream": True}))[:2] == (200, WHOLE)
                assert front.metrics.value("resumed") == 1

    run(test)


def _reported(front: Front, *seconds_ago: float) -> None:
    """The replicas have reported last so long ago."""
    for number, ago_s in sorted(enumerate(seconds_ago), key=lambda each: -each[1]):
        front.replicas.cluster.load(f"replica{number}", Load(), time.monotonic() - ago_s)
    front.silence.heard()


def test_streams_of_a_stopped_replica_go_on_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmserve.cluster.front.silence._ANSWER_S", 0.1)

    async def test() -> None:
        stopped, other = FakeReplica(stops_after=3), FakeReplica()
        async with front_of(stopped, other) as (url, front), asyncio.timeout(20):
            streams = [asyncio.create_task(_post(url, {"stream": True})) for _ in range(8)]
            await asyncio.wait(streams[:4], return_when=asyncio.FIRST_COMPLETED)
            while not stopped.is_stopped:  # noqa: ASYNC110 - plain state of an object under test
                await asyncio.sleep(0.01)
            assert not all(stream.done() for stream in streams)
            _reported(front, 3.5, 0.0)
            assert [(await stream)[1] for stream in streams] == [WHOLE] * 8
            assert front.metrics.value("resumed") >= 1

    run(test)


def test_what_is_asked_at_a_stopped_replica_is_asked_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmserve.cluster.front.silence._ANSWER_S", 0.1)

    async def test() -> None:
        stopped = FakeReplica(is_stopped=True)
        async with front_of(stopped, FakeReplica()) as (url, front), asyncio.timeout(20):
            front.replicas.cluster.load("replica1", Load(wait_s=60.0), time.monotonic())  # so the stopped one is asked
            async with aiohttp.ClientSession() as session:
                asked = [asyncio.create_task(session.get(f"{url}/v1/models")) for _ in range(8)]
                await stopped.asked_while_stopped.wait()
                _reported(front, 3.5, 0.0)
                assert [(await each).status for each in asked] == [200] * 8
            assert front.metrics.value("failed_attempts", "replica0") >= 1

    run(test)


def test_a_replica_that_answers_keeps_its_streams_though_it_reports_no_more() -> None:
    async def test() -> None:
        replicas = [FakeReplica(holds=True) for _ in range(2)]
        async with (
            asyncio.timeout(20),
            front_of(*replicas) as (url, front),
            aiohttp.ClientSession() as session,
            session.post(url + CHAT, json={"stream": True}) as answer,
        ):
            assert await answer.content.readexactly(9) == b"data: h\n\n"
            (replica,) = [replica for replica in replicas if replica.relays]
            _reported(front, *(3.5 if each is replica else 0.0 for each in replicas))
            while "/live" not in replica.paths:  # noqa: ASYNC110 - plain state of an object under test
                await asyncio.sleep(0.01)
            assert await answer.content.readexactly(9 * (len(TEXT) - 1))
            assert not replica.disconnected.is_set()
            answer.close()

    run(test)


def test_a_replica_that_takes_nothing_now_is_left_alone_for_a_while() -> None:
    async def test() -> None:
        draining, other = FakeReplica(status=503), FakeReplica()
        async with front_of(draining, other) as (url, _):
            for _ in range(12):
                assert (await _post(url, {"stream": True}))[:2] == (200, WHOLE)
            assert len(draining.paths) == 1

    run(test)


def test_streams_of_a_dead_replica_do_not_fall_upon_another_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on there a few at a time; each lets the next one begin with its first token."""
    monkeypatch.setattr("mmserve.cluster.front.attempts._MAX_RESUMES", 3)
    monkeypatch.setattr("mmserve.cluster.front.attempts._LONGEST_TURN_S", 60.0)

    async def test() -> None:
        dying = FakeReplica(dies_after=2, first_may_come=asyncio.Event())
        other = FakeReplica(first_may_come=asyncio.Event())

        def moved() -> int:
            return sum(relay.num_events == 2 for relay in other.relays)

        async with front_of(dying, other) as (url, front), asyncio.timeout(20):
            streams = [asyncio.create_task(_post(url, {"stream": True})) for _ in range(16)]
            while dying.waiting + other.waiting < 16:  # noqa: ASYNC110 - plain state of objects under test
                await asyncio.sleep(0.01)
            dying.first_may_come.set()
            while front.metrics.value("resumes_waiting") != dying.waiting - 3 or moved() < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert moved() == 3
            other.first_may_come.set()
            assert [(await stream)[1] for stream in streams] == [WHOLE] * 16

    run(test)


def test_tokens_of_answers_under_way_count_as_the_memory_of_bodies() -> None:
    """A stream keeps its tokens to go on elsewhere. New requests are refused when they take all; it goes on."""

    async def test() -> None:
        replica, nbytes = FakeReplica(holds=True), len(b'{"stream": true}')
        async with (
            front_of(replica, body_budget_mb=4 * nbytes / 2**20) as (url, _),
            aiohttp.ClientSession() as session,
        ):
            async with session.post(url + CHAT, json={"stream": True}) as answer:
                assert await answer.content.readexactly(9 * len(TEXT)) == WHOLE[: 9 * len(TEXT)].encode()
                assert (await _post(url, {"stream": True}))[0] == 503
            async with asyncio.timeout(10):
                await replica.disconnected.wait()
            async with session.post(url + CHAT, json={"stream": True}) as answer:
                assert answer.status == 200

    run(test)
