"""The router process on real sockets, with fake ranks behind it."""

from __future__ import annotations

import os
import threading
import time

import psutil
import pytest

from mmserve.ipc.channel import Sender
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.status import Heartbeat
from mmserve.messages.step import StepPlan, StepResult
from mmserve.metrics.names import METRICS
from tests.fakes.cache import until
from tests.fakes.rank import generate_alone
from tests.integration.router.conftest import NUM_WORKERS, Neighbours
from tests.unit.router.builders import abort, request, span

CONTEXT_TOKENS = 24 * 16
both_ways = pytest.mark.parametrize("overlap", [False, True])


def outputs(replies: list) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for reply in replies:
        found.setdefault(reply.id, []).extend(reply.token_ids)
    return found


def test_ready_says_how_many_tokens_the_cache_takes(neighbours: Neighbours) -> None:
    assert neighbours.ready == {"kv_blocks": 24, "kv_tokens": CONTEXT_TOKENS}


@both_ways
def test_many_requests_of_two_workers_get_their_own_tokens(neighbours: Neighbours) -> None:
    prompts = {str(number): [*range(100, 120), *[number] * (5 * number)] for number in range(16)}
    for name, prompt in prompts.items():
        neighbours.router.send(
            request(name, prompt, max_tokens=30, seed=int(name) // 2, reply_to=int(name) % NUM_WORKERS)
        )
    for worker in range(NUM_WORKERS):
        received = outputs(neighbours.replies_until_finish(worker, 8))
        assert sorted(received) == sorted(name for name in prompts if int(name) % NUM_WORKERS == worker)
        for name, tokens in received.items():
            sampling = SamplingParams(max_tokens=30, seed=int(name) // 2)
            assert tokens == generate_alone(prompts[name], sampling, CONTEXT_TOKENS)[0]
    # All ranks got the same plans; the last of them may still be computed by the one that does not answer.
    first, second = neighbours.fakes
    until(lambda: first.cells == second.cells)


@both_ways
def test_failures_of_single_requests_leave_the_others_alone(neighbours: Neighbours) -> None:
    for fake in neighbours.fakes:
        fake.lost_items.add(1)
        fake.broken_seeds.add(13)
    lost = [*range(1, 10), *range(1 << 32, (1 << 32) + 20)]
    neighbours.router.send(request("lost", lost, spans=(span(9, 20, 1),)))
    neighbours.router.send(request("broken", [1, 2, 3], seed=13))
    neighbours.router.send(request("too long", [1] * 400))
    neighbours.router.send(request("nobody's", [1, 2], reply_to=77))
    neighbours.router.send(abort("gone", reason="media_error", message="not a picture"))
    neighbours.router.send(request("good", [4, 5, 6], max_tokens=6))
    finishes = {reply.id: reply.finish for reply in neighbours.replies_until_finish(0, 5) if reply.finish}
    assert finishes == {
        "lost": "media_lost",
        "broken": "error",
        "too long": "error",
        "gone": "media_error",
        "good": "length",
    }


@pytest.mark.parametrize("overlap", [True])
def test_the_next_plan_is_there_before_the_ranks_are_done_with_the_last(neighbours: Neighbours) -> None:
    """Rank 0, who answers, computes nothing before the other one has been given a second plan."""
    first, second = neighbours.fakes
    compute, compute_too = first.step, second.step
    starts, came, has_second = list[int](), list[bool](), threading.Event()

    def compute_late(plan: StepPlan) -> StepResult:
        came.append(has_second.wait(timeout=20))
        starts.extend(step.start for step in plan.steps)
        return compute(plan)

    def tell(plan: StepPlan) -> StepResult:
        if plan.step_id == 2:
            has_second.set()
        return compute_too(plan)

    first.step, second.step = compute_late, tell
    neighbours.router.send(request("a", [1, 2, 3], max_tokens=4))
    received = outputs(neighbours.replies_until_finish(0, 1))
    assert received == {"a": generate_alone([1, 2, 3], SamplingParams(max_tokens=4), CONTEXT_TOKENS)[0]}
    assert all(came)
    assert starts == [0, 3, 4, 5]


def test_bytes_that_are_no_message_are_skipped(neighbours: Neighbours) -> None:
    stranger: Sender[object] = Sender(f"ipc://{neighbours.deployment.run_dir}/router", dict)
    stranger.send({"t": "nonsense"})
    stranger.close(linger_ms=1000)
    neighbours.router.send(request("a", [1, 2, 3], max_tokens=2))
    assert len(neighbours.replies_until_finish(0, 1)) == 2


@both_ways
def test_an_abort_ends_a_running_request_and_frees_its_blocks(neighbours: Neighbours) -> None:
    neighbours.router.send(request("a", [1, 2, 3], max_tokens=300))
    assert neighbours.workers[0].receive().token_ids
    neighbours.router.send(abort("a"))
    assert neighbours.replies_until_finish(0, 1)[-1].finish == "abort"
    held = None
    while held != 0:
        for sample in neighbours.metrics.receive().samples:
            if sample.name == "kv_blocks" and sample.labels == ("held",):
                held = sample.value


@both_ways
def test_nothing_is_computed_for_whoever_was_told_of_an_abort(neighbours: Neighbours) -> None:
    """It may have given up its pictures."""
    first = neighbours.fakes[0]
    compute = first.step

    def compute_slowly(plan: StepPlan) -> StepResult:
        time.sleep(0.02)
        return compute(plan)

    first.step = compute_slowly
    neighbours.router.send(request("a", [1, 2, 3], max_tokens=300))
    for _ in range(3):
        neighbours.workers[0].receive()
    neighbours.router.send(abort("a"))
    neighbours.replies_until_finish(0, 1)
    computed = first.num_tokens_computed
    neighbours.router.send(request("b", [4, 5, 6], max_tokens=2))
    neighbours.replies_until_finish(0, 1)
    assert first.num_tokens_computed == computed + 4


def test_metrics_and_heartbeats_go_out_with_known_names(neighbours: Neighbours) -> None:
    neighbours.router.send(request("a", list(range(40)), max_tokens=4))
    neighbours.replies_until_finish(0, 1)
    wanted = {
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
    while wanted:
        batch = neighbours.metrics.receive()
        assert batch.process == "router-0"
        for sample in batch.samples:
            assert len(sample.labels) == len(METRICS[sample.name].labels)
            wanted.discard(sample.name)
    beats = [neighbours.health.receive() for _ in range(2)]
    assert all(isinstance(beat, Heartbeat) and beat.process == "router-0" for beat in beats)


@both_ways
def test_an_idle_router_sleeps(neighbours: Neighbours) -> None:
    process = psutil.Process(neighbours.process.pid)
    neighbours.health.receive()
    before = process.cpu_times()
    for _ in range(2):
        neighbours.health.receive()
    after = process.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) <= 5 / os.sysconf("SC_CLK_TCK")


@both_ways
def test_sigterm_ends_it_cleanly_while_busy(neighbours: Neighbours) -> None:
    neighbours.router.send(request("a", [1, 2, 3], max_tokens=300))
    neighbours.workers[0].receive()
    assert neighbours.stop() == ("stopped", 0)


def test_sigterm_ends_it_cleanly_while_idle(neighbours: Neighbours) -> None:
    assert neighbours.stop() == ("stopped", 0)
