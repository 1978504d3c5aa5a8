"""The router process on real sockets, with fake ranks behind it."""

from __future__ import annotations

import os
import threading
import time

import psutil
import pytest

from mmserve.ipc.channel import Sender
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan, StepResult
from tests.fakes.cache import until
from tests.fakes.rank import generate_alone
from tests.fakes.samples import counted
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
