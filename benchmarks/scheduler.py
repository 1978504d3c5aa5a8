"""What planning a step costs: the scheduler alone, with 256 sequences running and ever more waiting.

    python -m benchmarks.scheduler [--json FILE]

Two cases: all slots taken with memory to spare, and slots free but no memory for those who wait ("full"), where
sequences come and go and each end makes the scheduler look at the queue again. CPU time of this thread; of each step,
which is the same in every repeat, the least counts, so that other work on the machine counts as little as possible.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from array import array

from benchmarks.load.report import Row, table, write_json
from mmserve.messages.request import GenerateRequest
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan, StepResult
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig

RUNNING = 256
WAITING = (10, 100, 1_000, 10_000)
STEPS = 300
REPEATS = 5
PROMPT_TOKENS = 64
BLOCK_TOKENS = 16
_BLOCKS_OF_A_SEQUENCE = 16
"""Fewer than its answer needs: a full cache holds not all of them."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    rows = [_measure(num_waiting, full=full) for full in (False, True) for num_waiting in WAITING]
    print(table(rows))
    write_json(arguments.json, rows)


def _measure(num_waiting: int, *, full: bool) -> Row:
    repeats = []
    for _ in range(REPEATS):
        scheduler, nbytes = _loaded(num_waiting, full=full)
        repeats.append([_step(scheduler) * 1e3 for _ in range(STEPS)])
    times_ms = sorted(map(min, *repeats))
    return {
        "KV cache": "full" if full else "ample",
        "waiting": num_waiting,
        "running": scheduler.num_running,
        "step_p50_ms": statistics.median(times_ms),
        "step_p99_ms": times_ms[int(0.99 * len(times_ms))],
        "bytes_per_waiting": float(nbytes // num_waiting),
    }


def _loaded(num_waiting: int, *, full: bool) -> tuple[Scheduler, int]:
    """A scheduler whose slots are taken, and the bytes that those who wait take."""
    num_blocks = RUNNING * _BLOCKS_OF_A_SEQUENCE
    config = SchedulerConfig(max_num_seqs=RUNNING, max_num_batched_tokens=20_000, max_model_len=4096)
    scheduler = Scheduler(
        config,
        num_blocks=num_blocks if full else 100 * num_blocks,
        block_tokens=BLOCK_TOKENS,
        now=time.monotonic,
        record=lambda name, value: None,
    )
    for index in range(RUNNING):
        # Of a full cache some end during the measurement, so that others may enter.
        scheduler.receive(_request(f"running-{index}", max_tokens=60 + index if full else 100_000))
    for _ in range(36):  # eight enter in each
        _step(scheduler)
    waiting = [_request(f"waiting-{index}", max_tokens=200) for index in range(num_waiting)]
    gc.collect()
    tracemalloc.start()
    for request in waiting:
        scheduler.receive(request)
    nbytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return scheduler, nbytes


def _step(scheduler: Scheduler) -> float:
    """Seconds of planning one step and taking in its result."""
    started_s = time.thread_time()
    plan = scheduler.schedule()
    planned_s = time.thread_time() - started_s
    assert plan is not None
    result = StepResult(step_id=plan.step_id, tokens=_tokens(plan))
    started_s = time.thread_time()
    scheduler.apply(plan, result)
    scheduler.take_replies()
    return planned_s + time.thread_time() - started_s


def _tokens(plan: StepPlan) -> tuple[tuple[int, int], ...]:
    return tuple((step.slot, 7) for step in plan.steps if step.sample)


def _request(request_id: str, max_tokens: int) -> GenerateRequest:
    """A prompt of its own: nothing of it is in the prefix cache."""
    first = abs(hash(request_id)) % 30_000
    return GenerateRequest(
        id=request_id,
        reply_to=0,
        prompt_ids=array("q", range(first, first + PROMPT_TOKENS)).tobytes(),
        spans=(),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=(2,)),
        output_ids=b"",
        arrival_s=0.0,
        attempt=0,
    )


if __name__ == "__main__":
    main()
