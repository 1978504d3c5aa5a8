"""The router process on real sockets, with fake ranks behind it."""

from __future__ import annotations

import os
import threading
import time

import psutil
import pytest

from mmserve.ipc.links.channel import Sender
from mmserve.messages.request import AbortRequest, EncodeRequest, ImagesEncoded
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan, StepResult
from tests.fakes.pictures.cache import until
from tests.fakes.processes.samples import counted
from tests.fakes.ranks.rank import generate_alone
from tests.integration.router.conftest import NUM_WORKERS, RouterPeers
from tests.unit.router.builders import abort, request, span

CONTEXT_TOKENS = 24 * 16
with_and_without_overlap = pytest.mark.parametrize("overlap", [False, True])


def outputs(replies: list) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for reply in replies:
        found.setdefault(reply.id, []).extend(reply.token_ids)
    return found


def test_the_ready_report_has_the_size_of_the_kv_cache(peers: RouterPeers) -> None:
    assert peers.ready == {"kv_blocks": 24, "kv_tokens": CONTEXT_TOKENS}


@with_and_without_overlap
def test_replies_go_to_the_worker_of_each_request(peers: RouterPeers) -> None:
    prompts = {str(number): [*range(100, 120), *[number] * (5 * number)] for number in range(16)}
    for name, prompt in prompts.items():
        peers.router.send(request(name, prompt, max_tokens=30, seed=int(name) // 2, reply_to=int(name) % NUM_WORKERS))
    for worker in range(NUM_WORKERS):
        received = outputs(peers.replies_until_finish(worker, 8))
        assert sorted(received) == sorted(name for name in prompts if int(name) % NUM_WORKERS == worker)
        for name, tokens in received.items():
            sampling = SamplingParams(max_tokens=30, seed=int(name) // 2)
            assert tokens == generate_alone(prompts[name], sampling, CONTEXT_TOKENS)[0]
    # All ranks got the same plans; the rank that sends no results may still be computing the last one.
    first, second = peers.fakes
    until(lambda: first.cells == second.cells)


@with_and_without_overlap
def test_a_failing_request_does_not_affect_the_others(peers: RouterPeers) -> None:
    for fake in peers.fakes:
        fake.lost_items.add(1)
        fake.broken_seeds.add(13)
    lost = [*range(1, 10), *range(1 << 32, (1 << 32) + 20)]
    peers.router.send(request("lost", lost, spans=(span(9, 20, 1),)))
    peers.router.send(request("broken", [1, 2, 3], seed=13))
    peers.router.send(request("too long", [1] * 400))
    peers.router.send(request("unknown worker", [1, 2], reply_to=77))
    peers.router.send(abort("gone", reason="media_error", message="not a picture"))
    peers.router.send(request("good", [4, 5, 6], max_tokens=6))
    finishes = {reply.id: reply.finish for reply in peers.replies_until_finish(0, 5) if reply.finish}
    assert finishes == {
        "lost": "media_lost",
        "broken": "error",
        "too long": "error",
        "gone": "media_error",
        "good": "length",
    }


@with_and_without_overlap
def test_images_are_encoded_once_their_request_needs_them(peers: RouterPeers) -> None:
    prompt = [*range(1, 40), *range(1 << 32, (1 << 32) + 20), 7]
    expected = generate_alone(prompt, SamplingParams(max_tokens=6), CONTEXT_TOKENS)[0]
    picture = span(39, 20, 1, encoded=False)
    peers.router.send(request("a", prompt, max_tokens=6, spans=(picture,)))
    asked = peers.visual.receive()
    assert asked == EncodeRequest(id="a", reply_to=0, spans=(picture,), arrival_s=0.0)
    until(lambda: peers.fakes[0].num_tokens_computed == 39)  # the text before it
    peers.router.send(ImagesEncoded(id="a", attempt=0, item_ids=(1,)))
    assert outputs(peers.replies_until_finish(0, 1)) == {"a": expected}
    peers.router.send(request("cached", prompt, max_tokens=6, spans=(picture,)))
    assert outputs(peers.replies_until_finish(0, 1)) == {"cached": expected}
    until(lambda: counted(peers.endpoints).get(("mm_images_not_encoded",)) == 1)
    peers.router.send(request("other", [8, *prompt], spans=(span(40, 20, 1, encoded=False),)))
    peers.router.send(abort("other"))
    assert peers.replies_until_finish(0, 1)[-1].finish == "abort"
    after = peers.visual.receive(), peers.visual.receive()
    assert [(type(message), message.id) for message in after] == [(EncodeRequest, "other"), (AbortRequest, "other")]


@with_and_without_overlap
def test_a_request_with_eight_images_begins_with_the_first(peers: RouterPeers) -> None:
    prompt, spans = [1, 2, 3], []
    for number in range(8):
        spans.append(span(len(prompt), 20, number, encoded=False))
        prompt += [*range((1 << 32) + 100 * number, (1 << 32) + 100 * number + 20), 4]
    peers.router.send(request("a", prompt, max_tokens=3, spans=tuple(spans)))
    asked = peers.visual.receive()
    assert isinstance(asked, EncodeRequest)
    assert [each.item_id for each in asked.spans] == list(range(8))
    for number, following in enumerate([*spans[1:], None]):
        peers.router.send(ImagesEncoded(id="a", attempt=0, item_ids=(number,)))
        if following is not None:
            until(lambda end=following.start: peers.fakes[0].num_tokens_computed == end)  # type: ignore[misc]
    expected = generate_alone(prompt, SamplingParams(max_tokens=3), CONTEXT_TOKENS)[0]
    assert outputs(peers.replies_until_finish(0, 1)) == {"a": expected}


@with_and_without_overlap
def test_a_broken_image_ends_the_request_that_needs_it(peers: RouterPeers) -> None:
    prompt = [*range(1, 40), *range(1 << 32, (1 << 32) + 20), 7]
    for name in ("broken", "good"):
        peers.router.send(request(name, prompt, max_tokens=2, spans=(span(39, 20, 1, encoded=False),)))
    assert {peers.visual.receive().id for _ in range(2)} == {"broken", "good"}  # type: ignore[union-attr]
    peers.router.send(abort("broken", reason="media_error", media_index=0, message="it is broken"))
    peers.router.send(ImagesEncoded(id="good", attempt=0, item_ids=(1,)))
    last = {reply.id: reply for reply in peers.replies_until_finish(0, 2)}
    assert (last["broken"].finish, last["broken"].media_index) == ("media_error", 0)
    assert last["good"].finish == "length"


@with_and_without_overlap
def test_images_are_asked_for_while_a_step_is_computed(peers: RouterPeers) -> None:
    """The step ends only once the visual server has been asked. The abort, which must wait for it, is not overtaken."""
    first, asked = peers.fakes[0], threading.Event()
    compute, in_time = first.step, list[bool]()

    def compute_late(plan: StepPlan) -> StepResult:
        in_time.append(asked.wait(timeout=20))
        return compute(plan)

    first.step = compute_late
    peers.router.send(request("text", [1, 2, 3], max_tokens=200))
    until(lambda: peers.fakes[1].num_tokens_computed > 0)
    prompt = [*range(1, 40), *range(1 << 32, (1 << 32) + 20), 7]
    peers.router.send(request("a", prompt, spans=(span(39, 20, 1, encoded=False),)))
    assert isinstance(peers.visual.receive(), EncodeRequest)
    peers.router.send(abort("text"))
    peers.router.send(request("b", prompt, spans=(span(39, 20, 1, encoded=False),)))
    asked.set()
    assert [reply.finish for reply in peers.replies_until_finish(0, 1)][-1] == "abort"
    assert peers.visual.receive().id == "b"  # type: ignore[union-attr]
    assert all(in_time)


@pytest.mark.parametrize("overlap", [True])
def test_the_ranks_have_the_next_plan_before_they_finish_the_last_one(peers: RouterPeers) -> None:
    """Rank 0, which sends the results, waits until the other rank has received a second plan."""
    first, second = peers.fakes
    compute, compute_too = first.step, second.step
    starts, in_time, has_second = list[int](), list[bool](), threading.Event()

    def compute_late(plan: StepPlan) -> StepResult:
        in_time.append(has_second.wait(timeout=20))
        starts.extend(step.start for step in plan.steps)
        return compute(plan)

    def report_plan(plan: StepPlan) -> StepResult:
        if plan.step_id == 2:
            has_second.set()
        return compute_too(plan)

    first.step, second.step = compute_late, report_plan
    peers.router.send(request("a", [1, 2, 3], max_tokens=4))
    received = outputs(peers.replies_until_finish(0, 1))
    assert received == {"a": generate_alone([1, 2, 3], SamplingParams(max_tokens=4), CONTEXT_TOKENS)[0]}
    assert all(in_time)
    assert starts == [0, 3, 4, 5]


def test_malformed_messages_are_skipped(peers: RouterPeers) -> None:
    sender: Sender[object] = Sender(f"ipc://{peers.deployment.run_dir}/router", dict)
    sender.send({"t": "nonsense"})
    sender.close(linger_ms=1000)
    peers.router.send(request("a", [1, 2, 3], max_tokens=2))
    assert len(peers.replies_until_finish(0, 1)) == 2


@with_and_without_overlap
def test_an_abort_ends_a_running_request_and_frees_its_blocks(peers: RouterPeers) -> None:
    peers.router.send(request("a", [1, 2, 3], max_tokens=300))
    assert peers.workers[0].receive().token_ids
    peers.router.send(abort("a"))
    assert peers.replies_until_finish(0, 1)[-1].finish == "abort"
    until(lambda: counted(peers.endpoints)["kv_blocks", "held"] == 0)


@with_and_without_overlap
def test_nothing_is_computed_for_a_request_after_the_reply_to_its_abort(peers: RouterPeers) -> None:
    """The HTTP worker releases the leases of the images when it has the reply."""
    first = peers.fakes[0]
    compute = first.step

    def compute_slowly(plan: StepPlan) -> StepResult:
        time.sleep(0.02)
        return compute(plan)

    first.step = compute_slowly
    peers.router.send(request("a", [1, 2, 3], max_tokens=300))
    for _ in range(3):
        peers.workers[0].receive()
    peers.router.send(abort("a"))
    peers.replies_until_finish(0, 1)
    computed = first.num_tokens_computed
    peers.router.send(request("b", [4, 5, 6], max_tokens=2))
    peers.replies_until_finish(0, 1)
    assert first.num_tokens_computed == computed + 4


def test_metrics_and_heartbeats_are_sent_with_known_names(peers: RouterPeers) -> None:
    peers.router.send(request("a", list(range(40)), max_tokens=4))
    peers.replies_until_finish(0, 1)
    expected = {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "kv_blocks",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "iteration_tokens",
        "step_seconds",
        "schedule_seconds",
    }
    until(lambda: expected <= {name for name, *_ in counted(peers.endpoints)})
    first = peers.next_beat()
    assert peers.next_beat().beat_s > first.beat_s


@with_and_without_overlap
def test_an_idle_router_sleeps(peers: RouterPeers) -> None:
    process = psutil.Process(peers.process.pid)
    peers.next_beat()
    before = process.cpu_times()
    for _ in range(2):
        peers.next_beat()
    after = process.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) <= 5 / os.sysconf("SC_CLK_TCK")


@with_and_without_overlap
def test_sigterm_stops_a_busy_router_cleanly(peers: RouterPeers) -> None:
    peers.router.send(request("a", [1, 2, 3], max_tokens=300))
    peers.workers[0].receive()
    assert peers.stop() == ("stopped", 0)


def test_sigterm_stops_an_idle_router_cleanly(peers: RouterPeers) -> None:
    assert peers.stop() == ("stopped", 0)
